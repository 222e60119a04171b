// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one rank knows of the health of its world: the first thing that went wrong, its own last operations and what it
// heard of its peers'.
// The first cause is kept for good; every later call gets it with its own call site.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/failure/peer_history.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/flight_snapshot.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Each has communicators of its own.
using belay::lane;
inline constexpr std::size_t lane_count = 2;
inline constexpr lane lanes[] = {lane::caller, lane::stream};

[[nodiscard]] constexpr std::size_t index(lane which) noexcept { return static_cast<std::size_t>(which); }

/// Why a world stopped.
struct abort_cause {
  comm_fault fault = comm_fault::revoked;
  std::vector<int> culprits;  // ranks of the world
  std::string message;
  std::string there;
  bool somebody_died = false;  // a process is gone: nothing that waits for all of them ends
  std::uint64_t at_us = 0;     // when this rank knew, by its steady clock; set by `health::keep`
};

/// One call as its rank sees it: what an error tells of this side.
struct call_site {
  operation what = operation::none;
  std::uint32_t group = 0;
  std::uint64_t number = 0;
  std::size_t bytes = 0;
  where at;

  /// "all_reduce #3"
  [[nodiscard]] std::string text() const { return std::string(name(what)) + " #" + std::to_string(number); }
};

/// Shared by the threads of one rank.
class world_status {
 public:
  [[nodiscard]] bool aborted() const noexcept { return stopped_.load(std::memory_order_acquire); }

  /// Keeps `why`, unless there is a cause already; true when it became the first one.
  bool keep(abort_cause why) {
    const std::lock_guard lock(mutex_);
    if (stopped_.load(std::memory_order_relaxed)) return false;
    cause_ = std::move(why);
    cause_.at_us = flight_microseconds(std::chrono::steady_clock::now());
    stopped_.store(true, std::memory_order_release);
    return true;
  }

  /// Why it stopped. Only after `aborted()`.
  [[nodiscard]] abort_cause cause() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  /// Whether the world stopped because a process is gone.
  [[nodiscard]] bool somebody_died() const {
    const std::lock_guard lock(mutex_);
    return cause_.somebody_died;
  }

  /// The first cause as an error of this call. Only after `aborted()`.
  [[noreturn]] void raise(const call_site& mine, double seconds_waited = 0) const {
    abort_cause why = cause();
    comm_error::details what;
    what.fault = why.fault;
    what.culprits = std::move(why.culprits);
    what.message = std::move(why.message);
    what.there = std::move(why.there);
    what.operation = name(mine.what);
    what.group = mine.group;
    what.operation_number = mine.number;
    what.bytes = mine.bytes;
    what.here = mine.at;
    what.seconds_waited = seconds_waited;
    throw comm_error(std::move(what));
  }

  [[nodiscard]] flight_recorder<>& recorder(lane which) noexcept { return recorders_[index(which)]; }
  [[nodiscard]] const flight_recorder<>& recorder(lane which) const noexcept { return recorders_[index(which)]; }

  [[nodiscard]] peer_history& history(lane which) noexcept { return histories_[index(which)]; }
  [[nodiscard]] const peer_history& history(lane which) const noexcept { return histories_[index(which)]; }

 private:
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;
  abort_cause cause_;
  flight_recorder<> recorders_[lane_count];
  peer_history histories_[lane_count];
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
