// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives that move. Bytes go from the buffer of one rank to that of another without a stop; only
// where two ranks' parts change places within a buffer, one of the two moves both through a small block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "belay/backend/host/arithmetic.hpp"
#include "belay/backend/host/collectives/party.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

template <transferable T>
void all_gather(party me, std::span<const T> in, std::span<T> out, where at) {
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank);
  check_length(out.size(), in.size() * static_cast<std::size_t>(me.size()), "all_gather: the output", at);
  check_overlap(in.data(), in.size_bytes(), out.data(), out.size_bytes(), out.data() + own, "all_gather", at);
  const fingerprint print{operation::all_gather, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  me.point->enter(me.rank, {print, in.data(), out.data(), {}, {}}, at);
  for (int k = 0; k < me.size(); ++k) {  // everybody begins at another peer
    const int q = (me.rank + k) % me.size();
    copy_elements(out.data() + in.size() * static_cast<std::size_t>(q), me.input_of<T>(q), in.size());
  }
  me.point->leave(me.rank);
}

template <transferable T>
void all_gather_v(party me, std::span<T> inout, std::span<const std::size_t> counts, where at) {
  check_counts(counts, me.size(), "all_gather_v", at);
  check_length(inout.size(), total_of(counts), "all_gather_v: the buffer", at);
  const fingerprint print{operation::all_gather_v, reduction::none, element_code_of<T>(), -1, inout.size(),
                          shape_of(counts)};
  me.point->enter(me.rank, {print, inout.data(), inout.data(), counts, {}}, at);
  expect_same_counts(me);
  for (int k = 1; k < me.size(); ++k) {
    const int q = (me.rank + k) % me.size();
    const std::size_t first = offset_of(counts, q);
    const std::size_t count = counts[static_cast<std::size_t>(q)];
    if (count > 0) copy_elements(inout.data() + first, me.input_of<T>(q) + first, count);
  }
  me.point->leave(me.rank);
}

template <transferable T>
void broadcast(party me, std::span<T> inout, int root, where at) {
  check_root(root, me.size(), "broadcast", at);
  const fingerprint print{operation::broadcast, reduction::none, element_code_of<T>(), root, inout.size(), 0};
  me.point->enter(me.rank, {print, inout.data(), inout.data(), {}, {}}, at);
  copy_elements(inout.data(), me.input_of<T>(root), inout.size());
  me.point->leave(me.rank);
}

template <transferable T>
void gather(party me, std::span<const T> in, std::span<T> out, int root, where at) {
  check_root(root, me.size(), "gather", at);
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank);
  if (me.rank == root) {  // nobody else has an output
    check_length(out.size(), in.size() * static_cast<std::size_t>(me.size()), "gather: the root's output", at);
    check_overlap(in.data(), in.size_bytes(), out.data(), out.size_bytes(), out.data() + own, "gather", at);
  }
  const fingerprint print{operation::gather, reduction::none, element_code_of<T>(), root, in.size(), 0};
  me.point->enter(me.rank, {print, in.data(), out.data(), {}, {}}, at);
  if (in.size() > 0) copy_elements(me.output_of<T>(root) + own, in.data(), in.size());
  me.point->leave(me.rank);
}

template <transferable T>
void scatter(party me, std::span<const T> in, std::span<T> out, int root, where at) {
  check_root(root, me.size(), "scatter", at);
  const std::size_t own = out.size() * static_cast<std::size_t>(me.rank);
  if (me.rank == root) {  // nobody else has an input
    check_length(in.size(), out.size() * static_cast<std::size_t>(me.size()), "scatter: the root's input", at);
    check_overlap(out.data(), out.size_bytes(), in.data(), in.size_bytes(), in.data() + own, "scatter", at);
  }
  const fingerprint print{operation::scatter, reduction::none, element_code_of<T>(), root, out.size(), 0};
  me.point->enter(me.rank, {print, in.data(), out.data(), {}, {}}, at);
  if (out.size() > 0) copy_elements(out.data(), me.input_of<T>(root) + own, out.size());
  me.point->leave(me.rank);
}

/// What a rank brings when it sends and receives parts: the same place twice only where it works in place.
template <class T>
[[nodiscard]] contribution brings(const fingerprint& print, std::span<const T> in,
                                  std::span<const std::size_t> send_counts, std::span<T> out,
                                  std::span<const std::size_t> receive_counts) noexcept {
  return {print, in.empty() ? nullptr : in.data(), out.empty() ? nullptr : out.data(), send_counts, receive_counts};
}

/// All parts to where they go. `sent(from, to)` is a part in the input of `from`, `received(to, from)` its place in
/// the output of `to`. Each rank fetches its own; but where one of a pair works in place, what either sends lies
/// where the other's shall be, and one of the two (of all pairs each rank gets half) moves both.
template <transferable T, class Sent, class Received>
void move_parts(party me, Sent sent, Received received) {
  const auto in_place = [&](int q) { return me.of(q).input != nullptr && me.of(q).input == me.of(q).output; };
  for (int k = 0; k < me.size(); ++k) {  // everybody begins at another peer
    const int q = (me.rank + k) % me.size();
    const std::span<T> mine = received(me.rank, q);
    if (mine.empty()) continue;
    if (!in_place(me.rank) && !in_place(q)) {
      copy_elements(mine.data(), sent(q, me.rank), mine.size());
    } else if (q != me.rank && ((me.rank + q) % 2 == 0) == (me.rank < q)) {
      const std::span<T> theirs = received(q, me.rank);
      cross_bytes(reinterpret_cast<const std::byte*>(sent(me.rank, q)), reinterpret_cast<std::byte*>(theirs.data()),
                  reinterpret_cast<const std::byte*>(sent(q, me.rank)), reinterpret_cast<std::byte*>(mine.data()),
                  mine.size_bytes());
    }
  }
}

template <transferable T>
void all_to_all(party me, std::span<const T> in, std::span<T> out, where at) {
  check_length(out.size(), in.size(), "all_to_all: the output", at);
  check_overlap(in.data(), in.size_bytes(), out.data(), out.size_bytes(), out.data(), "all_to_all", at);
  const auto ranks = static_cast<std::size_t>(me.size());
  if (in.size() % ranks != 0) {
    throw usage_error("all_to_all: " + std::to_string(in.size()) + " elements do not divide among " +
                          std::to_string(ranks) + " ranks; use all_to_all_v",
                      at);
  }
  const std::size_t part = in.size() / ranks;
  const fingerprint print{operation::all_to_all, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  me.point->enter(me.rank, brings(print, in, {}, out, {}), at);
  move_parts<T>(
      me, [&](int from, int to) { return me.input_of<T>(from) + part * static_cast<std::size_t>(to); },
      [&](int to, int from) {
        return std::span<T>(me.output_of<T>(to) + part * static_cast<std::size_t>(from), part);
      });
  me.point->leave(me.rank);
}

/// What i sends to j must be what j expects of i. Every rank compares all pairs, so that all come to the same
/// verdict before anything is written.
inline std::string first_unequal_pair(party me) {
  for (int from = 0; from < me.size(); ++from) {
    for (int to = 0; to < me.size(); ++to) {
      const std::size_t sent = me.of(from).send_counts[static_cast<std::size_t>(to)];
      const std::size_t expected = me.of(to).receive_counts[static_cast<std::size_t>(from)];
      if (sent == expected) continue;
      return "rank " + std::to_string(me.point->world_rank(from)) + " sends " + std::to_string(sent) +
             " elements to rank " + std::to_string(me.point->world_rank(to)) + " at " +
             me.point->site_of(me.rank, from).text() + ", which expects " + std::to_string(expected) + " at " +
             me.point->site_of(me.rank, to).text();
    }
  }
  return {};
}

template <transferable T>
void all_to_all_v(party me, std::span<const T> in, std::span<const std::size_t> send_counts, std::span<T> out,
                  std::span<const std::size_t> receive_counts, where at) {
  check_counts(send_counts, me.size(), "all_to_all_v", at);
  check_counts(receive_counts, me.size(), "all_to_all_v", at);
  check_length(in.size(), total_of(send_counts), "all_to_all_v: the input", at);
  check_length(out.size(), total_of(receive_counts), "all_to_all_v: the output", at);
  const bool exchanges = std::equal(send_counts.begin(), send_counts.end(), receive_counts.begin());
  check_overlap(in.data(), in.size_bytes(), out.data(), out.size_bytes(), exchanges ? out.data() : nullptr,
                "all_to_all_v", at);
  const fingerprint print{operation::all_to_all_v, reduction::none, element_code_of<T>(), -1, 0, 0};
  me.point->enter(me.rank, brings(print, in, send_counts, out, receive_counts), at);
  std::string unequal = first_unequal_pair(me);
  if (!unequal.empty()) {
    me.point->leave(me.rank);  // until here peers read this rank's counts
    me.point->refuse(me.rank, {}, unequal, "");
  }
  move_parts<T>(
      me, [&](int from, int to) { return me.input_of<T>(from) + offset_of(me.of(from).send_counts, to); },
      [&](int to, int from) {
        const std::span<const std::size_t> counts = me.of(to).receive_counts;
        return std::span<T>(me.output_of<T>(to) + offset_of(counts, from), counts[static_cast<std::size_t>(from)]);
      });
  me.point->leave(me.rank);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
