// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A clock that stands until a test moves it.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>

#include "belay/core/policies.hpp"

class hand_clock final : public belay::time_source {
 public:
  [[nodiscard]] time_point now() const noexcept override { return time_point(std::chrono::seconds(seconds_.load())); }
  void move(std::chrono::seconds by) noexcept { seconds_ += by.count(); }

 private:
  std::atomic<std::chrono::seconds::rep> seconds_{1'000'000'000};  // far from any time of the machine
};

/// One whose time forked children have too.
[[nodiscard]] inline std::shared_ptr<hand_clock> shared_hand_clock() {
  void* const room = ::mmap(nullptr, sizeof(hand_clock), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return {::new (room) hand_clock, [](hand_clock* of) { ::munmap(of, sizeof(hand_clock)); }};
}

/// Moves the clock on, much faster than time passes, for as long as this lives.
class moving_on {
 public:
  explicit moving_on(hand_clock& clock)
      : thread_([this, &clock] {
          while (!ends_) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            clock.move(std::chrono::seconds(100));
          }
        }) {}
  moving_on(const moving_on&) = delete;
  moving_on& operator=(const moving_on&) = delete;
  ~moving_on() {
    ends_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> ends_{false};
  std::thread thread_;
};
