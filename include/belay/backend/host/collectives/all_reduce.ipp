// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Larger all_reduces, on bytes.
#pragma once

#include "belay/backend/host/collectives/call.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// Of buffers that peers cannot load. Small ones are staged whole, and every rank reduces all. Of larger ones each rank
// stages the others' slices of a round, reduces its own slice of all ranks' and stages the result, which the others
// take while the next round is on its way.
BELAY_DECL void all_reduce_staged(collective_endpoint& me, const reduction_arithmetic& how, const std::byte* in,
                                  std::byte* out, std::size_t bytes) {
  if (bytes <= most_staged_one_shot) {
    for (bounce_rounds now(me, bytes, 1, how.element_bytes); now.left(); now.advance()) {
      now.stage(0, in, bytes);
      me.pass_round();
      for (int q = 0; q < me.size(); ++q) me.sources()[index_of(q)] = now.part_of(q, 0);
      reduce_sources_into(me, how, out + now.first(), now.clipped(bytes));
    }
    return;
  }
  const memory_access by =
      me.chosen().by == memory_access::non_temporal ? memory_access::non_temporal_remote : memory_access::automatic;
  const std::size_t room = me.bounce_buffer_bytes() / how.element_bytes, count = bytes / how.element_bytes;
  const std::size_t rounds = (count + room - 1) / room;
  const std::size_t most = (count + rounds - 1) / rounds;
  // Slices lie where they lie in the longest round: a result may still be read there while the slices beside it are
  // filled for the round after the next.
  const auto slice_in = [&](std::size_t length, int q) {
    const byte_range whole = slice_of(most, how.element_bytes, q, me.size());
    return byte_range{whole.first, whole.first >= length ? 0 : lesser_of(whole.bytes, length - whole.first)};
  };
  const auto each_slice = [&](std::size_t length, auto copy) {
    for (int q = 0; q < me.size(); ++q) {
      const byte_range slice = slice_in(length, q);
      if (q != me.rank()) copy(q, slice);
    }
  };
  const auto take = [&](byte_range round, std::size_t number) {
    each_slice(round.bytes, [&](int q, byte_range slice) {
      me.copies().copy(out + round.first + slice.first, me.bounce_buffer_of(q, number) + slice.first, slice.bytes,
                       bytes);
    });
  };
  std::size_t number = 0;
  byte_range last;
  for (byte_range now; now.first < bytes; last = now, now.first += now.bytes, ++number) {
    now.bytes = lesser_of(most * how.element_bytes, bytes - now.first);
    std::byte* const half = me.bounce_buffer_of(me.rank(), number);
    each_slice(now.bytes, [&](int, byte_range slice) {
      me.copies().copy_by(me.chosen().by, half + slice.first, in + now.first + slice.first, slice.bytes, bytes);
    });
    me.pass_round();
    const byte_range mine = slice_in(now.bytes, me.rank());
    for (int q = 0; q < me.size(); ++q) me.sources()[index_of(q)] = me.bounce_buffer_of(q, number) + mine.first;
    me.sources()[index_of(me.rank())] = in + now.first + mine.first;
    me.destinations()[0] = out + now.first + mine.first;
    if (me.size() > 1) me.destinations()[1] = half + mine.first;
    reduce_sources(me, how, lesser_of<std::size_t>(2, index_of(me.size())), mine.bytes, 0, by);
    if (number > 0) take(last, number - 1);
  }
  me.pass_round();
  take(last, number - 1);
}

BELAY_DECL void all_reduce_by_rendezvous(collective_context call, const fingerprint& print,
                                         const reduction_arithmetic& how, const std::byte* in, std::byte* out,
                                         const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t bytes = print.bytes();
  me.enter_rendezvous(call_buffers{print, in, bytes, out, bytes}, call.limit, at);
  if (me.all_in_eager_buffers()) {
    reduce_payloads_into(me, how, me.eager_buffers(), 0, out, bytes);
    return me.exit_without_wait();
  }
  const byte_range mine = slice_of(print.count, how.element_bytes, me.rank(), me.size());
  // This rank's input and output, and of the peers' what they have of a slice.
  const std::size_t like_copy_of = bytes + (bytes - mine.bytes) / 2;
  const auto fetch_slices = [&] {
    me.pass_round();  // all slices are done
    for (int k = 1; k < me.size(); ++k) {
      const int q = me.ring_peer(k);
      const byte_range theirs = slice_of(print.count, how.element_bytes, q, me.size());
      me.fetch(q, me.descriptor_of(q).output, theirs.first, out + theirs.first, theirs.bytes);
    }
  };
  const variant chosen = variant_of(me, bytes, {.slices = true});
  switch (chosen.how) {
    case algorithm::one_shot:
      use_inputs(me, 0);
      reduce_sources_into(me, how, out, bytes, like_copy_of, chosen.by);
      break;
    case algorithm::pull:
      use_inputs(me, mine.first);
      reduce_sources_into(me, how, out + mine.first, mine.bytes, like_copy_of);
      fetch_slices();
      break;
    case algorithm::cma:
      reduce_fetched(me, how, mine.first, out + mine.first, mine.bytes);
      fetch_slices();
      break;
    case algorithm::staged: all_reduce_staged(me, how, in, out, bytes); break;
    default:
      use_inputs(me, mine.first);
      for (int q = 0; q < me.size(); ++q) me.destinations()[index_of(q)] = me.output_of(q) + mine.first;
      reduce_sources(me, how, index_of(me.size()), mine.bytes, like_copy_of, chosen.by, me.rank());
      break;
  }
  me.exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
