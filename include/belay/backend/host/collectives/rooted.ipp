// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Larger collectives that have a root, on bytes: broadcasts, reduces, gathers and scatters.
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
