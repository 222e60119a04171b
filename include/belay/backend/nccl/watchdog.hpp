// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A thread that looks after a rank's communication while its host thread is elsewhere: at communicators that have met
// an error, at the control world, at operations that do not end.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// Calls `look()` so often, on its own thread, until it goes. `open()` is called first: the thread is one of the
/// device.
class watchdog {
 public:
  template <class Open, class Look>
  watchdog(std::chrono::steady_clock::duration period, Open open, Look look)
      : thread_([this, period, open = std::move(open), look = std::move(look)] {
          open();
          std::unique_lock lock(mutex_);
          while (!changed_.wait_for(lock, period, [this] { return ends_; })) look();
        }) {}
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;
  ~watchdog() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace belay::inline BELAY_ABI::nccl
