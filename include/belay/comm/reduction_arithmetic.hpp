// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two functions on bytes are compiled of a reduction of elements of one type, where a call names both: those that a
// call carries to whatever backend adds on the host. A type that no call reduces costs nothing.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/comm/reduce_blocks.hpp"
#include "belay/comm/reduce_simd.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/memory_access.hpp"

namespace belay::inline BELAY_ABI {

/// The data of all ranks in a small operation, or in the eager buffers of a larger one. Peers' data lies `stride` bytes
/// apart; this rank's is read from its caller's buffer, because a peer may just have taken the published copy into its
/// own cache.
struct peer_payloads {
  const std::byte* first = nullptr;
  std::size_t stride = 0;
  int me = 0;
  const std::byte* own = nullptr;

  [[nodiscard]] const std::byte* operator()(int who) const noexcept {
    return who == me ? own : first + static_cast<std::size_t>(who) * stride;
  }
};

/// Both add in rank order and round once, with equal bits.
struct reduction_arithmetic {
  /// Reduces `count` elements of all sources into every destination. `by` tells how two ranks' floats are added by
  /// vectors; `own` is the destination of two that is this rank's.
  void (*arrays)(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations, std::size_t count,
                 memory_access by, int own) noexcept;
  /// Reduces the elements [first, first + count) of `ranks` payloads, few enough for a flag line, into `out`.
  void (*few)(const peer_payloads& from, int ranks, std::size_t first, std::byte* out, std::size_t count) noexcept;
  std::size_t element_bytes;
};

template <class Op, class T>
void reduce_arrays(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                   std::size_t count, memory_access by, int own) noexcept {
  if (sources.size() != 2 || destinations.size() > 2) return reduce_elements<Op, T>(sources, destinations, count);
  const auto source = [&](std::size_t q) { return reinterpret_cast<const T*>(sources[q]); };
  T* const also_to = destinations.size() == 2 ? reinterpret_cast<T*>(destinations[1]) : nullptr;
  reduce_two<Op, T>(reinterpret_cast<T*>(destinations[0]), also_to, source(0), source(1), count, by, own);
}

template <class Op, class T>
void reduce_few(const peer_payloads& from, int ranks, std::size_t first, std::byte* out, std::size_t count) noexcept {
  using accumulator = accumulator_of<T>;
  const auto source = [&](int q) { return reinterpret_cast<const T*>(from(q)) + first; };
  T* const to = reinterpret_cast<T*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    auto total = static_cast<accumulator>(source(0)[i]);
    for (int q = 1; q < ranks; ++q) total = Op::apply(total, static_cast<accumulator>(source(q)[i]));
    if constexpr (finishing<Op>) total = Op::finish(total, ranks);
    to[i] = static_cast<T>(total);
  }
}

template <class Op, class T>
inline constexpr reduction_arithmetic arithmetic_of{reduce_arrays<Op, T>, reduce_few<Op, T>, sizeof(T)};

}  // namespace belay::inline BELAY_ABI
