// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Larger gathers, on bytes.
#pragma once

#include "belay/backend/host/collectives/call.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL void gather_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                     std::byte* out, const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t each = print.bytes();
  const int root = print.root;
  const bool is_root = me.rank() == root;
  const std::size_t all = is_root ? each * index_of(me.size()) : 0;
  me.enter_rendezvous(call_buffers{print, in, each, out, all}, call.limit, at);
  const auto [how, by] = variant_of(me, each);
  if (how != algorithm::staged && how != algorithm::cma) {
    const call_descriptor& roots = me.descriptor_of(root);
    const bool in_place = roots.input.is_at(roots.output, each * index_of(root));
    const std::size_t stored = in_place ? copied_by_peers(me, how, each, most_stored_by_root) : each;
    std::byte* const place = me.output_of(root) + each * index_of(me.rank());
    if (place != in) me.copies().copy_by(by, place, in, stored);
    for (int q = 0; q < me.size() && is_root && stored < each; ++q) {
      if (q != root) me.copies().copy_by(by, out + each * index_of(q) + stored, me.input_of(q) + stored, each - stored);
    }
  } else if (how == algorithm::cma) {
    for (int q = 0; q < me.size() && is_root; ++q, out += each) {
      if (q != root || out != in) me.fetch(q, me.descriptor_of(q).input, 0, out, each);
    }
  } else {
    for (bounce_rounds now(me, each, 1); now.left(); now.advance()) {
      now.stage(0, in, each);
      me.pass_round();
      for (int q = 0; q < me.size() && is_root; ++q) {
        me.copies().copy(out + index_of(q) * each + now.first(), now.part_of(q, 0), now.clipped(each));
      }
    }
  }
  me.exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
