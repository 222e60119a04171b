// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What surrounds a reduction's kernel.
#pragma once

#include <algorithm>
#include <bit>

#include "belay/backend/host/collectives/reduction_kernel.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL void reduce_sources(lane_endpoint& me, const reduction_arithmetic& how, std::size_t destinations,
                               std::size_t bytes, std::size_t like_copy_of, memory_access by, int own) {
  if (bytes == 0) return;
  const std::span<const std::byte* const> from = me.sources();
  const std::span<std::byte* const> to = me.destinations().first(destinations);
  // Where a destination is a source its lines have been read: to store around the caches would first throw them out.
  const auto is_source = [&](const std::byte* place) { return place == from[0] || place == from[1]; };
  if (from.size() == 2 && by == memory_access::automatic && std::none_of(to.begin(), to.end(), is_source) &&
      me.copies().non_temporal(like_copy_of)) {
    by = memory_access::non_temporal;
  }
  // (Elements that can be reduced have a power of two of bytes; a division takes longer than a small reduction.)
  how.arrays(from, to, bytes >> std::countr_zero(how.element_bytes), by, own);
}

BELAY_DECL void reduce_sources_into(lane_endpoint& me, const reduction_arithmetic& how, std::byte* out,
                                    std::size_t bytes, std::size_t like_copy_of, memory_access by) {
  me.destinations()[0] = out;
  reduce_sources(me, how, 1, bytes, like_copy_of, by);
}

BELAY_DECL void reduce_payloads_into(lane_endpoint& me, const reduction_arithmetic& how, const peer_payloads& payloads,
                                     std::size_t first, std::byte* out, std::size_t bytes) {
  for (int q = 0; q < me.size(); ++q) me.sources()[index_of(q)] = payloads(q) + first;
  reduce_sources_into(me, how, out, bytes);
}

BELAY_DECL void use_inputs(collective_endpoint& me, std::size_t first) {
  for (int q = 0; q < me.size(); ++q) me.sources()[index_of(q)] = me.input_of(q) + first;
}

BELAY_DECL void reduce_fetched(collective_endpoint& me, const reduction_arithmetic& how, std::size_t first,
                               std::byte* out, std::size_t bytes) {
  const std::size_t others = index_of(greater_of(me.size() - 1, 1));
  const std::size_t room = 2 * me.bounce_buffer_bytes() / (others * how.element_bytes) / 64 * 64 * how.element_bytes;
  const auto place_of = [&](int q) {
    return me.bounce_buffer_of(me.rank(), 0) + index_of(q > me.rank() ? q - 1 : q) * room;
  };
  for (std::size_t done = 0, length = 0; done < bytes; done += length) {
    length = lesser_of(room, bytes - done);
    for (int q = 0; q < me.size(); ++q) {
      if (q == me.rank()) continue;
      me.fetch(q, me.descriptor_of(q).input, first + done, place_of(q), length);
      me.sources()[index_of(q)] = place_of(q);
    }
    me.sources()[index_of(me.rank())] = static_cast<const std::byte*>(me.own_input()) + first + done;
    reduce_sources_into(me, how, out + done, length);
  }
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
