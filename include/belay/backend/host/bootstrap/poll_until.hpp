// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Waiting for descriptors until a point in time.
#pragma once

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The time by which a call is over.
using time_point = std::chrono::steady_clock::time_point;
/// For a call that does not wait.
inline constexpr time_point at_once{};

/// One ppoll, which ends at `until` at the latest: how many entries have something, 0 at the deadline, -1 with errno
/// (EINTR: a signal came).
[[nodiscard]] inline int poll_until(pollfd* entries, std::size_t count, time_point until) noexcept {
  // A moment before now, however far, is now; the difference to one like moment::min() would not fit.
  const auto left = until <= at_once ? std::chrono::nanoseconds(0)
                                     : std::chrono::nanoseconds(until - std::chrono::steady_clock::now());
  const std::int64_t wait = std::max<std::int64_t>(0, left.count());
  const timespec limit{static_cast<time_t>(wait / 1'000'000'000), static_cast<long>(wait % 1'000'000'000)};
  return ::ppoll(entries, count, &limit, nullptr);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
