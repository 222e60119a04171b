// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How long a rank waits for its peers: a limit in seconds as the steady clock counts it.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <chrono>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Throws usage_error for what is no limit. More than a year is no deadline on any clock and becomes a year.
[[nodiscard]] inline std::chrono::steady_clock::duration checked_timeout(std::chrono::duration<double> limit,
                                                                         const where& at) {
  if (is_nan(limit.count()) || limit.count() <= 0) throw usage_error("a timeout is more than 0 seconds", at);
  const std::chrono::duration<double> longest = std::chrono::hours(24 * 365);
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      is_finite(limit.count()) && limit < longest ? limit : longest);
}

/// The seconds of BELAY_TIMEOUT, or 600. Throws input_error.
[[nodiscard]] BELAY_DECL double timeout_of_environment();

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/checked_timeout.ipp"  // IWYU pragma: export
#endif
