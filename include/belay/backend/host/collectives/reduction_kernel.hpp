// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The arithmetic of the collectives that reduce. Of each operation and type of element one kernel is compiled, which
// works on arrays of bytes; all that surrounds it depends on no type.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/backend/host/copy/reduce_simd.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Reduces `count` elements of all sources, in rank order, into every destination. `by` tells how two ranks' floats are
/// added by vectors; `own` is the destination of two that is this rank's.
using reduction_kernel = void (*)(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                                  std::size_t count, memory_access by, int own) noexcept;

template <class Op, class T>
void reduce_arrays(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                   std::size_t count, memory_access by, int own) noexcept {
  if (sources.size() != 2 || destinations.size() > 2) return reduce_elements<Op, T>(sources, destinations, count);
  const auto source = [&](std::size_t q) { return reinterpret_cast<const T*>(sources[q]); };
  T* const also_to = destinations.size() == 2 ? reinterpret_cast<T*>(destinations[1]) : nullptr;
  reduce_two<Op, T>(reinterpret_cast<T*>(destinations[0]), also_to, source(0), source(1), count, by, own);
}

/// A reduction of elements of so many bytes.
struct element_reduction {
  reduction_kernel kernel;
  std::size_t element_bytes;
};
template <class Op, class T>
inline constexpr element_reduction reduction_of{reduce_arrays<Op, T>, sizeof(T)};

/// A rank's slice of `count` elements, whole cache lines.
[[nodiscard]] inline byte_range slice_of(std::size_t count, std::size_t element_bytes, int rank, int ranks) noexcept {
  const std::size_t share = share_of(count + index_of(ranks) - 1, ranks) * element_bytes;
  const std::size_t slice = (share + 63) / 64 * 64, bytes = count * element_bytes;
  const std::size_t first = lesser_of(bytes, slice * index_of(rank));
  return {first, lesser_of(slice, bytes - first)};
}

/// Reduces `bytes` of each of `me.sources()` into the first of `me.destinations()`, so many of them. Usually around the
/// caches where the machine wants that for a copy that touches as much as the operation does: of `like_copy_of` bytes.
BELAY_DECL void reduce_sources(lane_endpoint& me, element_reduction how, std::size_t destinations, std::size_t bytes,
                               std::size_t like_copy_of, memory_access by = memory_access::automatic, int own = 0);
/// The same into one destination.
BELAY_DECL void reduce_sources_into(lane_endpoint& me, element_reduction how, std::byte* out, std::size_t bytes,
                                    std::size_t like_copy_of = 0, memory_access by = memory_access::automatic);
/// Reduces what lies `first` bytes behind the beginning of all ranks' payloads.
BELAY_DECL void reduce_payloads_into(lane_endpoint& me, element_reduction how, const peer_payloads& payloads,
                                     std::size_t first, std::byte* out, std::size_t bytes);
/// The sources are what lies `first` bytes behind the beginning of all ranks' inputs.
BELAY_DECL void use_inputs(collective_endpoint& me, std::size_t first);
/// What lies `first` bytes behind the beginning of all ranks' inputs, where not all of them are mapped: peers' parts
/// are copied by the kernel of the system into this rank's bounce buffer.
BELAY_DECL void reduce_fetched(collective_endpoint& me, element_reduction how, std::size_t first, std::byte* out,
                               std::size_t bytes);

/// The elements [first, first + out.size()) of all ranks' payloads in an eager round, reduced.
template <class Op, class T>
void reduce_payloads(lane_endpoint& me, const peer_payloads& payloads, std::size_t first, std::span<T> out) {
  if (out.size_bytes() > flag_payload_bytes) {
    return reduce_payloads_into(me, reduction_of<Op, T>, payloads, first * sizeof(T),
                                reinterpret_cast<std::byte*>(out.data()), out.size_bytes());
  }
  using accumulator = accumulator_of<T>;
  const auto source = [&payloads, first](int q) { return reinterpret_cast<const T*>(payloads(q)) + first; };
  const int ranks = me.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    auto total = static_cast<accumulator>(source(0)[i]);
    for (int q = 1; q < ranks; ++q) total = Op::apply(total, static_cast<accumulator>(source(q)[i]));
    if constexpr (finishing<Op>) total = Op::finish(total, ranks);
    out[i] = static_cast<T>(total);
  }
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/reduction_kernel.ipp"  // IWYU pragma: export
#endif
