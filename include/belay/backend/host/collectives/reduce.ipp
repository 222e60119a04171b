// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Larger reduces, on bytes.
#pragma once

#include "belay/backend/host/collectives/call.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL void reduce_by_rendezvous(collective_context call, const fingerprint& print, const reduction_arithmetic& how,
                                     const std::byte* in, std::byte* out, const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t bytes = print.bytes();
  const bool is_root = me.rank() == print.root;
  me.enter_rendezvous(call_buffers{print, in, bytes, out, is_root ? bytes : 0}, call.limit, at);
  const variant chosen = variant_of(me, bytes, {.root_reduces = true});
  if (chosen.how == algorithm::cma) {
    if (is_root) reduce_fetched(me, how, 0, out, bytes);
  } else if (chosen.how == algorithm::staged) {
    for (bounce_rounds now(me, bytes, 1, how.element_bytes); now.left(); now.advance()) {
      now.stage(0, in, bytes);
      me.pass_round();
      for (int q = 0; q < me.size(); ++q) me.sources()[index_of(q)] = now.part_of(q, 0);
      if (is_root) reduce_sources_into(me, how, out + now.first(), now.clipped(bytes));
    }
  } else {
    const byte_range mine = slice_of(print.count, how.element_bytes, me.rank(), me.size());
    use_inputs(me, mine.first);
    reduce_sources_into(me, how, me.output_of(print.root) + mine.first, mine.bytes, bytes, chosen.by);
  }
  me.exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
