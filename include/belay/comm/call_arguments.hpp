// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every backend checks of a call by itself: what this rank was given, before it waits for any other.
// IWYU pragma: private, include "belay/belay.hpp"
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <span>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The part of `total` that each of `ranks` gets, rounded down. A power of two divides by a shift, because a division
/// takes long beside a small operation.
[[nodiscard]] constexpr std::size_t share_of(std::size_t total, int ranks) noexcept {
  const auto n = static_cast<unsigned>(ranks);
  return std::has_single_bit(n) ? total >> std::countr_zero(n) : total / n;
}

/// Elements of a buffer that holds `each` of every rank.
[[nodiscard]] constexpr checked_size all_parts(std::size_t each, int ranks) noexcept {
  return checked_size(each) * static_cast<std::size_t>(ranks);
}

/// Where a range begins in a packed buffer, of counts that were checked.
template <class Count>
[[nodiscard]] std::size_t offset_of(std::span<const Count> counts, int which) noexcept {
  return std::accumulate(counts.begin(), counts.begin() + which, std::size_t{0});
}
template <class Count>
[[nodiscard]] std::size_t total_of(std::span<const Count> counts) noexcept {
  return offset_of(counts, static_cast<int>(counts.size()));
}

// What refuses a call is compiled once and out of line, so that correct calls stay short.
[[noreturn, gnu::cold]] BELAY_DECL void refuse_bytes(std::size_t given, std::size_t element_bytes, const char* what,
                                                     const where& at);
[[noreturn, gnu::cold]] BELAY_DECL void refuse_length(std::size_t given, checked_size needed, const char* what,
                                                      const where& at);
[[noreturn, gnu::cold]] BELAY_DECL void refuse_root(int root, int ranks, const char* what, const where& at);
[[noreturn, gnu::cold]] BELAY_DECL void refuse_overlap(const char* what, const where& at);
[[noreturn, gnu::cold]] BELAY_DECL void refuse_parts(std::size_t given, int ranks, const where& at);
[[noreturn, gnu::cold]] BELAY_DECL void refuse_own_part(std::size_t sent, std::size_t expected, const where& at);
[[noreturn, gnu::cold]] BELAY_DECL void refuse_peer(int peer, int ranks, const where& at);
[[noreturn, gnu::cold]] BELAY_DECL void refuse_transfers(std::size_t bytes, int peer, const where& at);

/// A buffer of `given` elements is as long as the call needs it.
inline void check_length(std::size_t given, checked_size needed, const char* what, const where& at) {
  if (given != needed.saturated()) refuse_length(given, needed, what, at);
}
inline void check_root(int root, int ranks, const char* what, const where& at) {
  if (root < 0 || root >= ranks) refuse_root(root, ranks, what, at);
}
/// One count for each rank, which together divide a buffer of `length` elements: then all offsets lie within it.
BELAY_DECL void check_counts(std::size_t length, std::size_t element_bytes, std::span<const std::size_t> counts,
                             int ranks, const char* what, const char* whose, const where& at);

/// The members of a new group, ascending: ranks of a world of `ranks`, each once, `own` among them.
BELAY_DECL void check_members(std::span<const int> sorted, int ranks, int own, const where& at);

// How long a rank waits for its peers: a limit in seconds as the steady clock counts it.

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
#include "belay/comm/call_arguments.ipp"  // IWYU pragma: export
#endif
