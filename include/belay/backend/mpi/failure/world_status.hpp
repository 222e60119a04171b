// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one rank knows of the status of its world: the first failure, its own last operations and what its peers'
// messages said of theirs. The first cause is kept for good; every later call gets it with its own call site.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include "belay/backend/mpi/failure/peer_history.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/flight_snapshot.hpp"
#include "belay/comm/lane.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Shared by the threads of one rank.
class world_status {
 public:
  [[nodiscard]] bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }

  /// Stops the world here, unless it has stopped; true when `why` became the first cause.
  bool abort(abort_cause why) {
    const std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return false;
    cause_ = std::move(why);
    cause_.at_us = flight_microseconds(std::chrono::steady_clock::now());
    aborted_.store(true, std::memory_order_release);
    return true;
  }

  /// The first cause. Only after `aborted()`.
  [[nodiscard]] abort_cause cause() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  /// Whether the world stopped because a process is gone.
  [[nodiscard]] bool process_gone() const {
    const std::lock_guard lock(mutex_);
    return cause_.process_gone;
  }

  /// The first cause as an error of this call. Only after `aborted()`.
  [[noreturn]] void raise(const call_site& mine, double seconds_waited = 0) const {
    raise_cause(cause(), mine, seconds_waited);
  }

  [[nodiscard]] flight_recorder<>& recorder(lane which) noexcept { return recorders_[index(which)]; }
  [[nodiscard]] const flight_recorder<>& recorder(lane which) const noexcept { return recorders_[index(which)]; }

  [[nodiscard]] peer_history& history(lane which) noexcept { return histories_[index(which)]; }
  [[nodiscard]] const peer_history& history(lane which) const noexcept { return histories_[index(which)]; }

 private:
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  abort_cause cause_;
  flight_recorder<> recorders_[lane_count];
  peer_history histories_[lane_count];
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
