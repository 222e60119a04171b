// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Larger reduce_scatters, on bytes.
#pragma once

#include "belay/backend/host/collectives/call.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// This rank's part of the reduction of all inputs, which divide into `parts`, goes to `out`.
BELAY_DECL void reduce_parts(collective_endpoint& me, const reduction_arithmetic& how, const std::byte* in,
                             std::byte* out, division parts) {
  const byte_range mine = parts[me.rank()], end = parts[me.size() - 1];
  const std::size_t total = end.first + end.bytes;
  const variant chosen = variant_of(me, total);
  if (chosen.how == algorithm::cma) {
    reduce_fetched(me, how, mine.first, out, mine.bytes);
  } else if (chosen.how == algorithm::staged) {
    for (bounce_rounds now(me, parts.longest(me.size()), index_of(me.size()), how.element_bytes); now.left();
         now.advance()) {
      for (int q = 0; q < me.size(); ++q) now.stage(index_of(q), in + parts[q].first, parts[q].bytes);
      me.pass_round();
      for (int q = 0; q < me.size(); ++q) me.sources()[index_of(q)] = now.part_of(q, index_of(me.rank()));
      reduce_sources_into(me, how, out + now.first(), now.clipped(mine.bytes));
    }
  } else {
    use_inputs(me, mine.first);
    reduce_sources_into(me, how, out, mine.bytes, total, chosen.by);
  }
}

BELAY_DECL void reduce_scatter_by_rendezvous(collective_context call, const fingerprint& print,
                                             const reduction_arithmetic& how, const std::byte* in, std::byte* out,
                                             const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t each = print.bytes();
  me.enter_rendezvous(call_buffers{print, in, each * index_of(me.size()), out, each}, call.limit, at);
  reduce_parts(me, how, in, out, {each});
  me.exit_rendezvous();
}

BELAY_DECL void reduce_scatter_v_by_rendezvous(collective_context call, const fingerprint& print,
                                               const reduction_arithmetic& how, std::byte* inout,
                                               std::span<const std::size_t> counts, const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t all = print.bytes();
  const division parts{print.type.bytes, counts};
  me.enter_rendezvous(counted_call_buffers{{print, inout, all, inout, all}, counts}, call.limit, at);
  expect_same_counts(me);
  reduce_parts(me, how, inout, inout + parts[me.rank()].first, parts);
  me.exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
