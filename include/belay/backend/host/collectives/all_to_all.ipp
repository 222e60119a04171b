// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Larger all_to_alls, on bytes.
#pragma once

#include "belay/backend/host/collectives/call.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// What ranks send each other, in bytes: equal parts, or counts of elements that each rank has published.
struct pair_traffic {
  const collective_endpoint* me;
  std::size_t each;  // bytes of a part, or of an element
  operation what;

  // The part for `to` in the input of `from`, and the part from `from` in the output of `to`.
  [[nodiscard]] byte_range sent(int from, int to) const noexcept {
    return of(from, &collective_endpoint::send_counts_of, to);
  }
  [[nodiscard]] byte_range received(int to, int from) const noexcept {
    return of(to, &collective_endpoint::receive_counts_of, from);
  }

 private:
  using counts_of = std::span<const std::size_t> (lane_endpoint::*)(int) const noexcept;
  [[nodiscard]] byte_range of(int whose, counts_of counts, int other) const noexcept {
    if (what == operation::all_to_all) return division{each}[other];
    return division{each, (me->*counts)(whose)}[other];
  }
};

// All parts go to where they belong, `bytes` a rank on average. Each rank fetches its own parts or stores them into its
// peers. Where one of a pair works in place, what either sends lies where the other's part goes: each of the two moves
// one half of both parts through a small block. Where buffers are not mapped, all parts go through bounce buffers.
BELAY_DECL void move_parts(collective_endpoint& me, const std::byte* in, std::byte* out, std::size_t bytes,
                           const pair_traffic& parts) {
  const int own = me.rank();
  const byte_range kept = parts.sent(own, own);
  const bool any_in_place = me.any_in_place();
  const auto [how, by] = variant_of(me, bytes);
  if (stores_into_peers(how) && !any_in_place) {
    for (int k = 0; k < me.size(); ++k) {  // each rank begins with another peer
      const int q = me.ring_peer(k);
      const byte_range mine = parts.sent(own, q);
      std::byte* const to = (q == own ? out : me.output_of(q)) + parts.received(q, own).first;
      me.copies().push_by(by, to, in + mine.first, mine.bytes, bytes, bytes);
    }
  } else if (how != algorithm::staged && how != algorithm::cma) {
    for (int k = 0; k < me.size(); ++k) {
      const int q = me.ring_peer(k);
      const byte_range mine = parts.received(own, q);
      if (mine.bytes == 0) continue;
      const std::byte* const theirs = me.input_of(q) + parts.sent(q, own).first;
      if (!me.descriptor_of(own).is_in_place() && !me.descriptor_of(q).is_in_place()) {
        me.copies().copy_by(by, out + mine.first, theirs, mine.bytes);
      } else if (q != own) {
        const std::size_t half = mine.bytes / 2 / 64 * 64;
        const std::size_t first = own < q ? 0 : half, length = own < q ? half : mine.bytes - half;
        cross_bytes(me.input_of(own) + parts.sent(own, q).first + first,
                    me.output_of(q) + parts.received(q, own).first + first, theirs + first,
                    me.output_of(own) + mine.first + first, length);
      }
    }
  } else if (!any_in_place && how == algorithm::cma) {
    for (int k = 0; k < me.size(); ++k) {
      const int q = me.ring_peer(k);
      const byte_range mine = parts.received(own, q);
      me.fetch(q, me.descriptor_of(q).input, parts.sent(q, own).first, out + mine.first, mine.bytes);
    }
  } else {
    me.copies().copy(out + parts.received(own, own).first, in + kept.first, kept.bytes);  // (in place: nothing)
    std::size_t longest = 0;
    for (int from = 0; from < me.size(); ++from) {
      for (int to = 0; to < me.size(); ++to) longest = greater_of(longest, from == to ? 0 : parts.sent(from, to).bytes);
    }
    for (bounce_rounds now(me, longest, index_of(me.size())); now.left(); now.advance()) {
      for (int k = 1; k < me.size(); ++k) {
        const int q = me.ring_peer(k);
        const byte_range mine = parts.sent(own, q);
        now.stage(index_of(q), in + mine.first, mine.bytes);
      }
      me.pass_round();
      for (int k = 1; k < me.size(); ++k) {
        const int q = me.ring_peer(k);
        const byte_range mine = parts.received(own, q);
        me.copies().copy(out + mine.first + now.first(), now.part_of(q, index_of(own)), now.clipped(mine.bytes));
      }
    }
  }
}

BELAY_DECL void all_to_all_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                         std::byte* out, const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t bytes = print.bytes();
  me.enter_rendezvous(call_buffers{print, in, bytes, out, bytes}, call.limit, at);
  move_parts(me, in, out, bytes, {&me, share_of(bytes, me.size()), operation::all_to_all});
  me.exit_rendezvous();
}

BELAY_DECL void all_to_all_v_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                           std::span<const std::size_t> send_counts, std::byte* out,
                                           std::span<const std::size_t> receive_counts, const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t element = print.type.bytes, in_bytes = total_of(send_counts) * element,
                    out_bytes = total_of(receive_counts) * element;
  // How much the others bring is not known yet: a rank that brings little fills its eager buffer in any case.
  const bool fills = me.forced_algorithm() == algorithm::automatic && in_bytes <= eager_buffer_bytes(me.size());
  me.enter_rendezvous(
      counted_call_buffers{{print, in, in_bytes, out, out_bytes}, send_counts, receive_counts, fills ? in_bytes : 0},
      call.limit, at);
  expect_equal_pairs(me);
  const pair_traffic parts{&me, element, operation::all_to_all_v};
  bool all_eager = me.forced_algorithm() == algorithm::automatic;
  std::size_t total = 0;
  for (int q = 0; q < me.size(); ++q) {
    const std::size_t theirs = total_of(me.send_counts_of(q)) * element;
    all_eager = all_eager && theirs <= eager_buffer_bytes(me.size());
    total += theirs;
  }
  if (all_eager) {
    for (int q = 0; q < me.size(); ++q) {
      const byte_range from = parts.sent(q, me.rank());
      copy_elements(out + parts.received(me.rank(), q).first, me.eager_buffers()(q) + from.first, from.bytes);
    }
    return me.exit_without_wait();
  }
  move_parts(me, in, out, share_of(total, me.size()), parts);
  me.exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
