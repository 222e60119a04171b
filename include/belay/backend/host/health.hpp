// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The health of a world of ranks: the first thing that went wrong, who has left, how long to wait. The first
// cause is kept for good; everybody who waits, and everybody who calls later, gets it with his own call site.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/wait_word.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Operations of a rank run in two orders that never mix: those its own thread calls, and those it started,
/// which its communication stream runs. Each group has separate state for each.
enum class lane : std::uint8_t { caller, stream };
inline constexpr std::size_t lane_count = 2;

[[nodiscard]] constexpr std::size_t index(lane which) noexcept { return static_cast<std::size_t>(which); }

/// Why a world stopped.
struct first_cause {
  comm_fault fault = comm_fault::revoked;
  std::vector<int> culprits;  // ranks of the world
  std::string message;
  std::string there;
};

/// One call as its rank sees it: what an error tells of this side.
struct call_site {
  operation what = operation::none;
  std::uint64_t number = 0;
  std::size_t bytes = 0;
  where at;
};

/// Shared by all ranks of one run.
class health {
 public:
  using clock = std::chrono::steady_clock;

  health(int ranks, clock::duration timeout, int cores)
      : timeout_(timeout), cores_(cores), ranks_(ranks), seats_(std::make_unique<seat[]>(static_cast<std::size_t>(ranks))) {}

  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  [[nodiscard]] clock::duration timeout() const noexcept { return timeout_; }

  /// How often a wait looks before it sleeps: where a core is free for each rank a peer is about to arrive;
  /// where not, it needs this core.
  [[nodiscard]] int spins(lane which) const noexcept {
    if (ranks_ > cores_) return 4;
    return which == lane::caller ? 400 : 40;
  }

  [[nodiscard]] bool stopped() const noexcept { return stopped_.load(std::memory_order_acquire); }

  /// Stops the world, unless it has stopped already; true when `why` became the first cause.
  bool stop(first_cause why) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_.load(std::memory_order_relaxed)) return false;
      cause_ = std::move(why);
      stopped_.store(true, std::memory_order_release);
    }
    ring_all();
    return true;
  }

  /// The first cause as an error of this call. Only after `stopped()`.
  [[noreturn]] void raise(const call_site& mine, double seconds_waited = 0) const {
    comm_error::details what;
    {
      const std::lock_guard lock(mutex_);
      what.fault = cause_.fault;
      what.culprits = cause_.culprits;
      what.message = cause_.message;
      what.there = cause_.there;
    }
    what.operation = name(mine.what);
    what.operation_number = mine.number;
    what.bytes = mine.bytes;
    what.here = mine.at;
    what.seconds_waited = seconds_waited;
    throw comm_error(std::move(what));
  }

  /// Waits, briefly, for a stop that another rank has begun.
  void await_stop() const noexcept {
    for (int i = 0; !stopped(); ++i) {
      const timespec moment{0, i < 100 ? 1000 : 1'000'000};
      ::nanosleep(&moment, nullptr);
    }
  }

  /// `rank` will never again enter an operation of this lane.
  void leave(int rank, lane which) noexcept {
    seats_[static_cast<std::size_t>(rank)].left[index(which)].store(true, std::memory_order_release);
    ring_all();
  }
  [[nodiscard]] bool left(int rank, lane which) const noexcept {
    return seats_[static_cast<std::size_t>(rank)].left[index(which)].load(std::memory_order_acquire);
  }

  [[nodiscard]] flight_recorder<>& recorder(int rank, lane which) noexcept {
    return seats_[static_cast<std::size_t>(rank)].recorder[index(which)];
  }

  /// "rank 2 (in barrier #3 at train.cpp:88)"
  [[nodiscard]] std::string whereabouts(int rank, lane which) {
    return "rank " + std::to_string(rank) + " (" + recorder(rank, which).last().text() + ")";
  }

  /// Words to ring when the world stops or a rank leaves.
  void enroll(wait_word<>& bell) {
    const std::lock_guard lock(mutex_);
    bells_.push_back(&bell);
  }
  void withdraw(wait_word<>& bell) noexcept {
    const std::lock_guard lock(mutex_);
    bells_.erase(std::remove(bells_.begin(), bells_.end(), &bell), bells_.end());
  }

 private:
  struct alignas(64) seat {
    std::atomic<bool> left[lane_count] = {};
    flight_recorder<> recorder[lane_count];
  };

  void ring_all() noexcept {
    const std::lock_guard lock(mutex_);
    for (wait_word<>* bell : bells_) bell->ring();
  }

  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;
  first_cause cause_;
  std::vector<wait_word<>*> bells_;
  clock::duration timeout_;
  int cores_;
  int ranks_;
  std::unique_ptr<seat[]> seats_;
};

/// The deadline of one wait. The clock is first read when the wait is about to sleep.
class deadline {
 public:
  explicit deadline(health::clock::duration timeout) noexcept : timeout_(timeout) {}

  [[nodiscard]] bool passed() noexcept {
    const auto now = health::clock::now();
    if (start_ == health::clock::time_point{}) start_ = now;
    return now - start_ >= timeout_;
  }
  [[nodiscard]] double seconds() const noexcept {
    if (start_ == health::clock::time_point{}) return 0;
    return std::chrono::duration<double>(health::clock::now() - start_).count();
  }

 private:
  health::clock::duration timeout_;
  health::clock::time_point start_{};
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
