// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The arithmetic of a reduction over several ranks' memory. It works in blocks that stay in the first-level
// cache: every source is read once and every destination written once, and since the block is nobody's
// buffer, sources and destinations may be the same memory at the same index.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "belay/comm/reduction.hpp"
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

/// For i in [begin, begin + count): ((s0[i] + s1[i]) + s2[i]) + ..., finished and rounded to T once, is stored at
/// index i of every destination. `source(q)` and `destination(d)` give the arrays.
template <class Op, class T, class Source, class Destination>
void reduce_elements(int sources, Source source, int destinations, Destination destination, std::size_t begin,
                     std::size_t count) noexcept {
  using accumulator = accumulator_of<T>;
  constexpr std::size_t block = 4096 / sizeof(accumulator);
  alignas(64) accumulator total[block];
  [[maybe_unused]] alignas(64) T rounded[block];

  const auto one_block = [&](std::size_t first, std::size_t length) {
    const T* x = source(0) + first;
    for (std::size_t i = 0; i < length; ++i) total[i] = static_cast<accumulator>(x[i]);
    for (int q = 1; q < sources; ++q) {
      const T* y = source(q) + first;
      for (std::size_t i = 0; i < length; ++i) total[i] = Op::apply(total[i], static_cast<accumulator>(y[i]));
    }
    if constexpr (finishing<Op>) {
      for (std::size_t i = 0; i < length; ++i) total[i] = Op::finish(total[i], sources);
    }
    const T* result;
    if constexpr (std::is_same_v<accumulator, T>) {
      result = total;
    } else {
      for (std::size_t i = 0; i < length; ++i) rounded[i] = static_cast<T>(total[i]);
      result = rounded;
    }
    for (int d = 0; d < destinations; ++d) {
      std::memcpy(destination(d) + first, result, length * sizeof(T));
    }
  };

  const std::size_t end = begin + count;
  // Of several destinations each belongs to the rank of the source beside it; a single one may be any rank's.
  const auto is_source = [&](const T* place, int d) {
    if (destinations > 1) return d < sources && source(d) == place;
    for (int q = 0; q < sources; ++q) {
      if (source(q) == place) return true;
    }
    return false;
  };
  const auto fetch_block = [&](std::size_t first) {
    if (first >= end || count * sizeof(T) >= least_beyond_caches) return;
    for (int d = 0; d < destinations; ++d) {
      const T* const place = destination(d);
      if (is_source(place, d)) prefetch_for_write(place + first, std::min(block, end - first) * sizeof(T));
    }
  };
  std::size_t first = begin;
  fetch_block(first);
  for (; first + block <= end; first += block) {
    fetch_block(first + block);
    one_block(first, block);  // a constant trip count
  }
  if (first < end) one_block(first, end - first);
}

/// What is at `from_a` goes to `to_b` and what is at `from_b` to `to_a`. Of each block both are read before either is
/// written, so `to_a` may be `from_a` and `to_b` may be `from_b`.
inline void cross_bytes(const std::byte* from_a, std::byte* to_b, const std::byte* from_b, std::byte* to_a,
                        std::size_t bytes) noexcept {
  alignas(64) std::byte held[4096];
  const auto fetch_block = [=](std::size_t first) {
    if (first >= bytes || bytes >= least_beyond_caches) return;
    const std::size_t length = std::min(sizeof held, bytes - first);
    if (to_a == from_a) prefetch_for_write(to_a + first, length);
    if (to_b == from_b) prefetch_for_write(to_b + first, length);
  };
  fetch_block(0);
  for (std::size_t first = 0; first < bytes; first += sizeof held) {
    const std::size_t length = std::min(sizeof held, bytes - first);
    fetch_block(first + sizeof held);
    std::memcpy(held, from_a + first, length);
    std::memcpy(to_a + first, from_b + first, length);
    std::memcpy(to_b + first, held, length);
  }
}

}  // namespace belay::inline BELAY_ABI
