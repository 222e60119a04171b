// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which way a collective goes: an eager round, or its rendezvous.
#pragma once

#include <algorithm>
#include <bit>

#include "belay/backend/host/collectives/call.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/reduce_simd.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL void run_all_reduce(collective_context call, const op_call& what) {
  const algorithm how = call.endpoint->eager_algorithm(what.out_bytes(), what.element_bytes());
  if (how != algorithm::automatic) return all_reduce_eagerly(*call.endpoint, call.limit, how, what);
  all_reduce_by_rendezvous(call, what.print(what.out_count), *what.arithmetic, what.in, what.out, what.at);
}

BELAY_DECL void run_reduce_scatter(collective_context call, const op_call& what) {
  collective_endpoint& me = *call.endpoint;
  const fingerprint print = what.print(what.out_count);
  const algorithm how = me.eager_algorithm(what.in_bytes(), what.element_bytes(), eager_traffic::all_in_parts);
  if (how == algorithm::automatic)
    return reduce_scatter_by_rendezvous(call, print, *what.arithmetic, what.in, what.out, what.at);
  me.eager_round(how, print, what.in, what.in_bytes(), call.limit, what.at);
  reduce_payloads(me, *what.arithmetic, me.payloads(), what.out_count * index_of(call.rank()), what.out,
                  what.out_count);
}

BELAY_DECL void run_reduce(collective_context call, const op_call& what) {
  collective_endpoint& me = *call.endpoint;
  const bool is_root = call.rank() == what.root;
  const fingerprint print = what.print(what.in_count);
  const algorithm how = me.eager_algorithm(what.in_bytes(), what.element_bytes(), eager_traffic::root);
  if (how == algorithm::automatic)
    return reduce_by_rendezvous(call, print, *what.arithmetic, what.in, is_root ? what.out : nullptr, what.at);
  me.eager_round(how, print, what.in, what.in_bytes(), call.limit, what.at);
  if (is_root) reduce_payloads(me, *what.arithmetic, me.payloads(), 0, what.out, what.out_count);
}

BELAY_DECL void run_all_gather(collective_context call, const op_call& what) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t each = what.in_bytes();
  const fingerprint print = what.print(what.in_count);
  const algorithm how = me.eager_algorithm(each, what.element_bytes());
  if (how == algorithm::automatic) return all_gather_by_rendezvous(call, print, what.in, what.out, what.at);
  me.eager_round(how, print, what.in, each, call.limit, what.at);
  const peer_payloads payloads = me.payloads();
  std::byte* to = what.out;
  for (int q = 0; q < call.size(); ++q, to += each) copy_elements(to, payloads(q), each);
}

BELAY_DECL void run_gather(collective_context call, const op_call& what) {
  collective_endpoint& me = *call.endpoint;
  const bool is_root = call.rank() == what.root;
  const std::size_t each = what.in_bytes();
  const fingerprint print = what.print(what.in_count);
  const algorithm how = me.eager_algorithm(each, what.element_bytes(), eager_traffic::root);
  if (how == algorithm::automatic)
    return gather_by_rendezvous(call, print, what.in, is_root ? what.out : nullptr, what.at);
  me.eager_round(how, print, what.in, is_root ? 0 : each, call.limit, what.at);
  const peer_payloads payloads = me.payloads();
  std::byte* to = what.out;
  for (int q = 0; q < call.size() && is_root; ++q, to += each) copy_elements(to, payloads(q), each);
}

BELAY_DECL void run_all_to_all(collective_context call, const op_call& what) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t bytes = what.in_bytes();
  const fingerprint print = what.print(what.in_count);
  const algorithm how = me.eager_algorithm(bytes, what.element_bytes(), eager_traffic::all_in_parts);
  if (how == algorithm::automatic) return all_to_all_by_rendezvous(call, print, what.in, what.out, what.at);
  me.eager_round(how, print, what.in, bytes, call.limit, what.at);
  const peer_payloads payloads = me.payloads();
  const std::size_t each = share_of(bytes, call.size()), first = each * index_of(call.rank());
  std::byte* to = what.out;
  for (int q = 0; q < call.size(); ++q, to += each) copy_elements(to, payloads(q) + first, each);
}

BELAY_DECL void run_broadcast(collective_context call, const op_call& what) {
  collective_endpoint& me = *call.endpoint;
  const std::size_t bytes = what.in_bytes();
  const fingerprint print = what.print(what.in_count);
  const algorithm how = me.eager_algorithm(bytes, what.element_bytes(), eager_traffic::root);
  if (how == algorithm::automatic) return broadcast_by_rendezvous(call, print, what.out, what.at);
  me.eager_round(how, print, what.in, call.rank() == what.root ? bytes : 0, call.limit, what.at);
  copy_elements(what.out, me.payloads()(what.root), bytes);
}

BELAY_DECL void run_scatter(collective_context call, const op_call& what) {
  collective_endpoint& me = *call.endpoint;
  const bool is_root = call.rank() == what.root;
  const std::size_t each = what.out_bytes(), all = each * index_of(call.size());
  const fingerprint print = what.print(what.out_count);
  const algorithm how = me.eager_algorithm(all, what.element_bytes(), eager_traffic::root);
  if (how == algorithm::automatic)
    return scatter_by_rendezvous(call, print, is_root ? what.in : nullptr, what.out, what.at);
  me.eager_round(how, print, what.in, is_root ? all : 0, call.limit, what.at);
  copy_elements(what.out, me.payloads()(what.root) + each * index_of(call.rank()), each);
}

BELAY_DECL void run_collective(collective_context call, const op_call& what) {
  const auto print_of_parts = [&] { return what.print(what.in_count, shape_of(what.parts())); };
  switch (what.what()) {
    case operation::barrier: return barrier(call, what.at);
    case operation::all_reduce: return run_all_reduce(call, what);
    case operation::reduce_scatter: return run_reduce_scatter(call, what);
    case operation::reduce_scatter_v:
      return reduce_scatter_v_by_rendezvous(call, print_of_parts(), *what.arithmetic, what.out, what.parts(), what.at);
    case operation::all_gather: return run_all_gather(call, what);
    case operation::all_gather_v:
      return all_gather_v_by_rendezvous(call, print_of_parts(), what.out, what.parts(), what.at);
    case operation::all_to_all: return run_all_to_all(call, what);
    case operation::all_to_all_v:
      return all_to_all_v_by_rendezvous(call, what.print(0), what.in, what.parts(), what.out, what.received_parts(),
                                        what.at);
    case operation::broadcast: return run_broadcast(call, what);
    case operation::reduce: return run_reduce(call, what);
    case operation::gather: return run_gather(call, what);
    case operation::scatter: return run_scatter(call, what);
    case operation::none:
    case operation::exchange:
    case operation::make_symmetric: return;
  }
}

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
