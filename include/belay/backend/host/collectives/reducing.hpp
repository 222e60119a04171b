// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives that reduce. Every rank computes a slice from its peers' buffers, in rank order, and stores
// it where it belongs; blocks of the arithmetic are all that is staged.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "belay/backend/host/arithmetic.hpp"
#include "belay/backend/host/collectives/party.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Reduces this rank's slice, whole cache lines, of all ranks' buffers into those of `destinations` ranks.
template <class Op, class T, class Destination>
void reduce_slice(party me, std::size_t length, int destinations, Destination destination) {
  const auto ranks = static_cast<std::size_t>(me.size());
  constexpr std::size_t line = 64 / sizeof(T) > 0 ? 64 / sizeof(T) : 1;
  const std::size_t slice = ((length + ranks - 1) / ranks + line - 1) / line * line;
  const std::size_t begin = std::min(length, slice * static_cast<std::size_t>(me.rank));
  const std::size_t count = std::min(slice, length - begin);
  if (ranks == 1 || count == 0) return;
  const auto source = [&](int q) { return me.input_of<T>(q); };
  reduce_elements<Op, T>(me.size(), source, destinations, destination, begin, count);
}

template <reducible T, reduction_tag Op>
void all_reduce(party me, std::span<T> inout, Op, where at) {
  const fingerprint print{operation::all_reduce, Op::code, element_code_of<T>(), -1, inout.size(), 0};
  me.point->enter(me.rank, {print, inout.data(), inout.data(), {}, {}}, at);
  reduce_slice<Op, T>(me, inout.size(), me.size(), [&](int q) { return me.output_of<T>(q); });
  me.point->leave(me.rank);
}

template <reducible T, reduction_tag Op>
void reduce(party me, std::span<T> inout, Op, int root, where at) {
  check_root(root, me.size(), "reduce", at);
  const fingerprint print{operation::reduce, Op::code, element_code_of<T>(), root, inout.size(), 0};
  me.point->enter(me.rank, {print, inout.data(), inout.data(), {}, {}}, at);
  reduce_slice<Op, T>(me, inout.size(), 1, [&](int) { return me.output_of<T>(root); });
  me.point->leave(me.rank);
}

template <reducible T, reduction_tag Op>
void reduce_scatter_v(party me, std::span<T> inout, std::span<const std::size_t> counts, Op, where at) {
  check_counts(counts, me.size(), "reduce_scatter_v", at);
  check_length(inout.size(), total_of(counts), "reduce_scatter_v: the buffer", at);
  const fingerprint print{
      operation::reduce_scatter_v, Op::code, element_code_of<T>(), -1, inout.size(), shape_of(counts)};
  me.point->enter(me.rank, {print, inout.data(), inout.data(), counts, {}}, at);
  expect_same_counts(me);
  if (me.size() > 1) {
    const auto source = [&](int q) { return me.input_of<T>(q); };
    const auto mine = [&](int) { return inout.data(); };
    reduce_elements<Op, T>(me.size(), source, 1, mine, offset_of(counts, me.rank),
                           counts[static_cast<std::size_t>(me.rank)]);
  }
  me.point->leave(me.rank);
}

template <reducible T, reduction_tag Op>
void reduce_scatter(party me, std::span<const T> in, std::span<T> out, Op, where at) {
  const std::size_t first = out.size() * static_cast<std::size_t>(me.rank);
  check_length(in.size(), out.size() * static_cast<std::size_t>(me.size()), "reduce_scatter: the input", at);
  check_overlap(out.data(), out.size_bytes(), in.data(), in.size_bytes(), in.data() + first, "reduce_scatter", at);
  const fingerprint print{operation::reduce_scatter, Op::code, element_code_of<T>(), -1, out.size(), 0};
  me.point->enter(me.rank, {print, in.data(), out.data(), {}, {}}, at);
  if (out.size() > 0) {
    const auto source = [&](int q) { return me.input_of<T>(q); };
    const auto mine = [&](int) { return out.data(); };
    reduce_elements<Op, T>(me.size(), source, 1, mine, first, out.size(), -static_cast<std::ptrdiff_t>(first));
  }
  me.point->leave(me.rank);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
