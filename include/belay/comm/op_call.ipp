// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The checks of every backend's calls, before any of them waits for a peer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

#include "belay/comm/call_arguments.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/core/checked_size.hpp"

namespace belay::inline BELAY_ABI {

// The bytes of a buffer fit into a number: a span does not check what it was made with.
BELAY_DECL void check_buffer_sizes(const op_call& call) {
  const std::size_t most = largest_size / greater_of<std::size_t>(call.element_bytes(), 1);
  for (const std::size_t count : {call.in_count, call.out_count})
    if (count > most) [[unlikely]]
      refuse_bytes(count, call.element_bytes(), name(call.what()), call.at);
}
// `allowed` is where the operation is in place.
BELAY_DECL void check_overlap_of(const op_call& call, const std::byte* first, const std::byte* allowed) {
  check_buffer_sizes(call);
  const std::size_t in = call.in_bytes(), out = call.out_bytes();
  if (in == 0 || out == 0 || first == allowed) return;
  const std::less<const std::byte*> before;
  if (before(call.in, call.out + out) && before(call.out, call.in + in)) [[unlikely]]
    refuse_overlap(name(call.what()), call.at);
}
BELAY_DECL void check_parts_of(const op_call& call, int ranks, const char* whose) {
  check_counts(call.in_count, call.element_bytes(), call.parts(), ranks, name(call.what()), whose, call.at);
}
BELAY_DECL void check_all_to_all_v(const op_call& call, int ranks) {
  check_counts(call.in_count, call.element_bytes(), call.parts(), ranks, "all_to_all_v: what is sent",
               "all_to_all_v: the input", call.at);
  check_counts(call.out_count, call.element_bytes(), call.received_parts(), ranks, "all_to_all_v: what is received",
               "all_to_all_v: the output", call.at);
  const std::span<const std::size_t> sent = call.parts(), received = call.received_parts();
  const bool exchanges = std::equal(sent.begin(), sent.end(), received.begin());
  check_overlap_of(call, call.in, exchanges ? call.out : nullptr);
  if (ranks == 1 && !exchanges) refuse_own_part(sent[0], received[0], call.at);
}

// Peers of the group, and bytes that together fit into a number.
BELAY_DECL void check_transfers(const op_call& call, int ranks) {
  checked_size bytes;
  const p2p* most = nullptr;  // the first that is too much
  for (const p2p& one : call.exchanged()) {
    bytes += one.bytes;
    if (!bytes.fits() && most == nullptr) most = &one;
    if (one.peer < 0 || one.peer >= ranks) refuse_peer(one.peer, ranks, call.at);
  }
  if (most != nullptr) refuse_transfers(most->bytes, most->peer, call.at);
}

BELAY_DECL void check_call(const op_call& call, int rank, int ranks) {
  const auto own = [&](std::size_t each) { return each * call.element_bytes() * static_cast<std::size_t>(rank); };
  switch (call.what()) {
    case operation::all_reduce:
      check_length(call.out_count, call.in_count, "all_reduce: the output", call.at);
      return check_overlap_of(call, call.in, call.out);
    case operation::reduce_scatter:
      check_length(call.in_count, all_parts(call.out_count, ranks), "reduce_scatter: the input", call.at);
      return check_overlap_of(call, call.out, call.in + own(call.out_count));
    case operation::reduce_scatter_v: return check_parts_of(call, ranks, "reduce_scatter_v: the buffer");
    case operation::all_gather:
      check_length(call.out_count, all_parts(call.in_count, ranks), "all_gather: the output", call.at);
      return check_overlap_of(call, call.in, call.out + own(call.in_count));
    case operation::all_gather_v: return check_parts_of(call, ranks, "all_gather_v: the buffer");
    case operation::all_to_all:
      check_length(call.out_count, call.in_count, "all_to_all: the output", call.at);
      check_overlap_of(call, call.in, call.out);
      if (share_of(call.in_count, ranks) * static_cast<std::size_t>(ranks) != call.in_count)
        refuse_parts(call.in_count, ranks, call.at);
      return;
    case operation::all_to_all_v: return check_all_to_all_v(call, ranks);
    case operation::broadcast: check_root(call.root, ranks, "broadcast", call.at); return check_buffer_sizes(call);
    case operation::reduce:
      check_root(call.root, ranks, "reduce", call.at);
      if (rank != call.root) return check_buffer_sizes(call);  // only the root has an output
      check_length(call.out_count, call.in_count, "reduce: the root's output", call.at);
      return check_overlap_of(call, call.in, call.out);
    case operation::gather:
      check_root(call.root, ranks, "gather", call.at);
      if (rank != call.root) return check_buffer_sizes(call);
      check_length(call.out_count, all_parts(call.in_count, ranks), "gather: the root's output", call.at);
      return check_overlap_of(call, call.in, call.out + own(call.in_count));
    case operation::scatter:
      check_root(call.root, ranks, "scatter", call.at);
      if (rank != call.root) return check_buffer_sizes(call);  // only the root has an input
      check_length(call.in_count, all_parts(call.out_count, ranks), "scatter: the root's input", call.at);
      return check_overlap_of(call, call.out, call.in + own(call.out_count));
    case operation::exchange: return check_transfers(call, ranks);
    case operation::none:
    case operation::barrier:
    case operation::make_symmetric: return;
  }
}

}  // namespace belay::inline BELAY_ABI
