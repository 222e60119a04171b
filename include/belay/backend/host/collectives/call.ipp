// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which way a collective goes: an eager round, or its rendezvous.
#pragma once

#include "belay/backend/host/collectives/call.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/reduce_blocks.hpp"

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

}  // namespace host
}  // namespace belay::inline BELAY_ABI
