// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one rank knows of the health of its world: the first thing that went wrong and its own last operations.
// The first cause is kept for good; every later call gets it with its own call site.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Operations of a rank run in two orders that never mix: those its own thread calls, and those it started,
/// which its communication stream runs. Each has communicators of its own.
enum class lane : std::uint8_t { caller, stream };
inline constexpr std::size_t lane_count = 2;
inline constexpr lane lanes[] = {lane::caller, lane::stream};

[[nodiscard]] constexpr std::size_t index(lane which) noexcept { return static_cast<std::size_t>(which); }

/// Why a world stopped.
struct first_cause {
  comm_fault fault = comm_fault::revoked;
  std::vector<int> culprits;  // ranks of the world
  std::string message;
  std::string there;
  bool somebody_died = false;  // a process is gone: nothing that waits for all of them ends
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
class health {
 public:
  [[nodiscard]] bool stopped() const noexcept { return stopped_.load(std::memory_order_acquire); }

  /// Keeps `why`, unless there is a cause already; true when it became the first one.
  bool keep(first_cause why) {
    const std::lock_guard lock(mutex_);
    if (stopped_.load(std::memory_order_relaxed)) return false;
    cause_ = std::move(why);
    stopped_.store(true, std::memory_order_release);
    return true;
  }

  /// Whether the world stopped because a process is gone.
  [[nodiscard]] bool somebody_died() const {
    const std::lock_guard lock(mutex_);
    return cause_.somebody_died;
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
    what.group = mine.group;
    what.operation_number = mine.number;
    what.bytes = mine.bytes;
    what.here = mine.at;
    what.seconds_waited = seconds_waited;
    throw comm_error(std::move(what));
  }

  [[nodiscard]] flight_recorder<>& recorder(lane which) noexcept { return recorders_[index(which)]; }
  [[nodiscard]] const flight_recorder<>& recorder(lane which) const noexcept { return recorders_[index(which)]; }

 private:
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;
  first_cause cause_;
  flight_recorder<> recorders_[lane_count];
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
