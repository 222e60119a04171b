// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The surroundings of a reduction's arithmetic: which arrays it reads and writes, and how, in the calls of this
// backend.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A rank's slice of `count` elements, whole cache lines.
[[nodiscard]] inline byte_range slice_of(std::size_t count, std::size_t element_bytes, int rank, int ranks) noexcept {
  const std::size_t share = share_of(count + index_of(ranks) - 1, ranks) * element_bytes;
  const std::size_t slice = (share + 63) / 64 * 64, bytes = count * element_bytes;
  const std::size_t first = lesser_of(bytes, slice * index_of(rank));
  return {first, lesser_of(slice, bytes - first)};
}

/// Reduces `bytes` of each of `me.sources()` into the first of `me.destinations()`, so many of them. Usually around the
/// caches where the machine wants that for a copy that touches as much as the operation does: of `like_copy_of` bytes.
BELAY_DECL void reduce_sources(lane_endpoint& me, const reduction_arithmetic& how, std::size_t destinations,
                               std::size_t bytes, std::size_t like_copy_of, memory_access by = memory_access::automatic,
                               int own = 0);
/// Reduces `bytes` of each of `me.sources()` into `out`. Usually around the caches where the machine wants that for a
/// copy that touches as much as the operation does: of `like_copy_of` bytes.
BELAY_DECL void reduce_sources_into(lane_endpoint& me, const reduction_arithmetic& how, std::byte* out,
                                    std::size_t bytes, std::size_t like_copy_of = 0,
                                    memory_access by = memory_access::automatic);
/// Reduces what lies `first` bytes behind the beginning of all ranks' payloads.
BELAY_DECL void reduce_payloads_into(lane_endpoint& me, const reduction_arithmetic& how, const peer_payloads& payloads,
                                     std::size_t first, std::byte* out, std::size_t bytes);
/// The sources are what lies `first` bytes behind the beginning of all ranks' inputs.
BELAY_DECL void use_inputs(collective_endpoint& me, std::size_t first);
/// Reduces into `out` the `bytes` that lie `first` bytes behind the beginning of all ranks' inputs, where not all of
/// them are mapped: peers' parts are copied by the kernel of the system into this rank's bounce buffer.
BELAY_DECL void reduce_fetched(collective_endpoint& me, const reduction_arithmetic& how, std::size_t first,
                               std::byte* out, std::size_t bytes);

/// Elements [first, first + count) of all ranks' payloads in an eager round, reduced into `out`.
inline void reduce_payloads(lane_endpoint& me, const reduction_arithmetic& how, const peer_payloads& payloads,
                            std::size_t first, std::byte* out, std::size_t count) {
  const std::size_t bytes = count * how.element_bytes;
  if (bytes > flag_payload_bytes) return reduce_payloads_into(me, how, payloads, first * how.element_bytes, out, bytes);
  how.few(payloads, me.size(), first, out, count);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/reduction_kernel.ipp"  // IWYU pragma: export
#endif
