// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Larger scatters, on bytes.
#pragma once

#include "belay/backend/host/collectives/call.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL void scatter_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                      std::byte* out, const where& at) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t each = print.bytes();
  const int root = print.root;
  const bool is_root = me.rank() == root;
  const std::size_t all = is_root ? each * index_of(me.size()) : 0;
  me.enter_rendezvous(call_buffers{print, in, all, out, each}, call.limit, at);
  const auto [how, by] = variant_of(me, each);
  const call_descriptor& roots = me.descriptor_of(root);
  const bool in_place = roots.output.is_at(roots.input, each * index_of(root));
  if (root_stores(me, how, each, in_place ? most_stored_by_free_root : most_stored_by_root)) {
    if (is_root) {
      me.copies().copy_by(by, me.output_of(1 - root), in + each * index_of(1 - root), each);
      if (out != in + each * index_of(root)) me.copies().copy_by(by, out, in + each * index_of(root), each);
    }
  } else if (how != algorithm::staged) {
    const std::size_t fetched = in_place ? copied_by_peers(me, how, each, most_stored_by_free_root) : each;
    if (!is_root || !in_place) {
      me.fetch(root, roots.input, each * index_of(me.rank()), out, is_root ? each : fetched, by);
    }
    for (int q = 0; q < me.size() && is_root && fetched < each; ++q) {
      if (q != root)
        me.copies().copy_by(by, me.output_of(q) + fetched, in + each * index_of(q) + fetched, each - fetched);
    }
  } else {
    for (bounce_rounds now(me, each, index_of(me.size())); now.left(); now.advance()) {
      for (int q = 0; q < me.size() && is_root; ++q) now.stage(index_of(q), in + index_of(q) * each, each);
      me.pass_round();
      me.copies().copy(out + now.first(), now.part_of(root, index_of(me.rank())), now.clipped(each));
    }
  }
  me.exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
