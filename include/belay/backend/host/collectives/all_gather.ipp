// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Larger all_gathers, on bytes.
#pragma once

#include <cstdint>

#include "belay/backend/host/collectives/call.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// Bytes of a block that is copied to several places in turn: it stays in the cache meanwhile.
inline constexpr std::size_t gathered_block_bytes = 256 * 1024;

// Every rank's part to every rank, `bytes` in all: where the parts lie in `out`, and whether they lie there in the
// inputs too or are each an input's beginning.
enum class gathered_from : std::uint8_t { own_buffers, own_parts };

BELAY_DECL void gather_parts(collective_endpoint& me, const std::byte* in, std::byte* out, std::size_t bytes,
                             division parts, gathered_from where_parts_lie) {
  const bool from_parts = where_parts_lie == gathered_from::own_parts;
  const byte_range own = parts[me.rank()];
  const std::byte* const mine = in + (from_parts ? own.first : 0);
  const variant chosen = variant_of(me, bytes);
  if (chosen.how == algorithm::staged) {
    for (bounce_rounds now(me, parts.longest(me.size()), 1); now.left(); now.advance()) {
      now.stage(0, mine, own.bytes);
      me.pass_round();
      for (int q = 0; q < me.size(); ++q) {
        const byte_range theirs = parts[q];
        me.copies().copy(out + theirs.first + now.first(), now.part_of(q, 0), now.clipped(theirs.bytes));
      }
    }
    return;
  }
  const bool in_place = out + own.first == mine;
  if (!stores_into_peers(chosen.how)) {
    for (int k = in_place ? 1 : 0; k < me.size(); ++k) {
      const int q = me.ring_peer(k);
      const byte_range theirs = parts[q];
      me.fetch(q, me.descriptor_of(q).input, from_parts ? theirs.first : 0, out + theirs.first, theirs.bytes,
               chosen.by);
    }
    return;
  }
  // A block goes to all before the next one: only the first of its copies reads beyond the caches. Each rank begins
  // with another peer.
  const std::size_t moved = own.bytes * index_of(me.size() - (in_place ? 1 : 0));
  for (std::size_t first = 0; first < own.bytes; first += gathered_block_bytes) {
    const std::size_t length = lesser_of(gathered_block_bytes, own.bytes - first);
    const auto store = [&](std::byte* buffer) {
      me.copies().push_by(chosen.by, buffer + own.first + first, mine + first, length, own.bytes, moved);
    };
    if (!in_place) store(out);
    for (int k = 1; k < me.size(); ++k) store(me.output_of(me.ring_peer(k)));
  }
}

BELAY_DECL void all_gather_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                         std::byte* out, const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t each = print.bytes(), all = each * index_of(me.size());
  me.enter_rendezvous(call_buffers{print, in, each, out, all}, call.limit, at);
  if (me.all_in_eager_buffers()) {
    for (int q = 0; q < me.size(); ++q, out += each) copy_elements(out, me.eager_buffers()(q), each);
    return me.exit_without_wait();
  }
  gather_parts(me, in, out, all, {each}, gathered_from::own_buffers);
  me.exit_rendezvous();
}

BELAY_DECL void all_gather_v_by_rendezvous(collective_context call, const fingerprint& print, std::byte* inout,
                                           std::span<const std::size_t> counts, const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t all = print.bytes();
  me.enter_rendezvous(counted_call_buffers{{print, inout, all, inout, all}, counts}, call.limit, at);
  expect_same_counts(me);
  gather_parts(me, inout, inout, all, {print.type.bytes, counts}, gathered_from::own_parts);
  me.exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
