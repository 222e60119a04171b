// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Larger broadcasts, on bytes.
#pragma once

#include "belay/backend/host/collectives/call.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL void broadcast_by_rendezvous(collective_context call, const fingerprint& print, std::byte* inout,
                                        const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t bytes = print.bytes();
  const int root = print.root;
  const bool is_root = me.rank() == root;
  me.enter_rendezvous(call_buffers{print, inout, bytes, inout, bytes}, call.limit, at);
  const auto [how, by] = variant_of(me, bytes);
  if (root_stores(me, how, bytes, most_stored_by_free_root)) {
    if (is_root) me.copies().copy_by(by, me.output_of(1 - root), inout, bytes);
  } else if (how != algorithm::staged) {
    const std::size_t fetched = copied_by_peers(me, how, bytes, most_stored_by_free_root);
    if (!is_root) me.fetch(root, me.descriptor_of(root).input, 0, inout, fetched, by);
    for (int q = 0; q < me.size() && is_root && fetched < bytes; ++q) {
      if (q != root) me.copies().copy_by(by, me.output_of(q) + fetched, inout + fetched, bytes - fetched);
    }
  } else {
    for (bounce_rounds now(me, bytes, 1); now.left(); now.advance()) {
      if (is_root) now.stage(0, inout, bytes);
      me.pass_round();
      if (!is_root) me.copies().copy(inout + now.first(), now.part_of(root, 0), now.clipped(bytes));
    }
  }
  me.exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
