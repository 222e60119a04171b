// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The arithmetic of a reduction over several ranks' memory, on every backend. It works in blocks that stay in the
// first-level cache: every source is read once and every destination written once. Since the block is no rank's buffer,
// sources and destinations may be the same memory at the same index.
// IWYU pragma: private, include "belay/belay.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/prefetch.hpp"

namespace belay::inline BELAY_ABI {

/// A buffer of this many bytes or more is not in a peer's cache as a whole.
inline constexpr std::size_t least_beyond_caches = 2 * 1024 * 1024;

/// Copies elements; zero of them may come from nowhere.
template <class T>
void copy_elements(T* to, const T* from, std::size_t count) noexcept {
  if (count > 0 && to != from) std::memcpy(to, from, count * sizeof(T));
}

/// Prefetches `bytes` at `first` of the destinations that are also sources, for writing, in a reduction of `all` bytes.
inline void prefetch_reduced(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                             std::size_t first, std::size_t bytes, std::size_t all) noexcept {
  if (bytes == 0 || all >= least_beyond_caches) return;
  // Of several destinations each belongs to the rank of the source beside it; a single one may be any rank's.
  for (std::size_t d = 0; d < destinations.size(); ++d) {
    const std::byte* const place = destinations[d];
    const bool is_source = destinations.size() > 1 ? d < sources.size() && sources[d] == place
                                                   : std::find(sources.begin(), sources.end(), place) != sources.end();
    if (is_source) prefetch_for_write(place + first, bytes);
  }
}

/// For each element i < count: ((s0[i] + s1[i]) + s2[i]) + ..., finished and rounded to T once, is stored at index i of
/// every destination. The arrays are of T.
template <class Op, class T>
void reduce_elements(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                     std::size_t count) noexcept {
  using accumulator = accumulator_of<T>;
  constexpr std::size_t block = 4096 / sizeof(accumulator);
  alignas(64) accumulator total[block];
  [[maybe_unused]] alignas(64) T rounded[block];
  const auto source = [=](std::size_t q) { return reinterpret_cast<const T*>(sources[q]); };

  const auto one_block = [&](std::size_t first, std::size_t length) {
    const T* x = source(0) + first;
    for (std::size_t i = 0; i < length; ++i) total[i] = static_cast<accumulator>(x[i]);
    for (std::size_t q = 1; q < sources.size(); ++q) {
      const T* y = source(q) + first;
      for (std::size_t i = 0; i < length; ++i) total[i] = Op::apply(total[i], static_cast<accumulator>(y[i]));
    }
    if constexpr (finishing<Op>) {
      const int ranks = static_cast<int>(sources.size());
      for (std::size_t i = 0; i < length; ++i) total[i] = Op::finish(total[i], ranks);
    }
    const T* result;
    if constexpr (std::is_same_v<accumulator, T>) {
      result = total;
    } else {
      for (std::size_t i = 0; i < length; ++i) rounded[i] = static_cast<T>(total[i]);
      result = rounded;
    }
    for (std::byte* const to : destinations) std::memcpy(to + first * sizeof(T), result, length * sizeof(T));
  };

  std::size_t first = 0;
  prefetch_reduced(sources, destinations, 0, lesser_of(block, count) * sizeof(T), count * sizeof(T));
  for (; first + block <= count; first += block) {
    const std::size_t next = first + block;
    prefetch_reduced(sources, destinations, next * sizeof(T), lesser_of(block, count - next) * sizeof(T),
                     count * sizeof(T));
    one_block(first, block);  // a constant trip count
  }
  if (first < count) one_block(first, count - first);
}

/// Bytes at `from_a` go to `to_b`, and bytes at `from_b` to `to_a`. Of each block both are read before either is
/// written, so `to_a` may be `from_a` and `to_b` may be `from_b`.
inline void cross_bytes(const std::byte* from_a, std::byte* to_b, const std::byte* from_b, std::byte* to_a,
                        std::size_t bytes) noexcept {
  alignas(64) std::byte held[4096];
  const auto fetch_block = [=](std::size_t first) {
    if (first >= bytes || bytes >= least_beyond_caches) return;
    const std::size_t length = lesser_of(sizeof held, bytes - first);
    if (to_a == from_a) prefetch_for_write(to_a + first, length);
    if (to_b == from_b) prefetch_for_write(to_b + first, length);
  };
  fetch_block(0);
  for (std::size_t first = 0; first < bytes; first += sizeof held) {
    const std::size_t length = lesser_of(sizeof held, bytes - first);
    fetch_block(first + sizeof held);
    std::memcpy(held, from_a + first, length);
    std::memcpy(to_a + first, from_b + first, length);
    std::memcpy(to_b + first, held, length);
  }
}

}  // namespace belay::inline BELAY_ABI
