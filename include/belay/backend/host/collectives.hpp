// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives among ranks that can read and write each other's memory: meet, move, part. Nothing is
// staged; every rank computes its slice from its peers' buffers and stores it where it belongs. What one rank
// stores no other rank touches until all have parted, which is why the operations may be in place.
#pragma once

#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>

#include "belay/backend/host/arithmetic.hpp"
#include "belay/backend/host/rendezvous.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A rank's place at a meeting point: all it takes to run a collective.
struct party {
  rendezvous* point;
  int rank;

  [[nodiscard]] int size() const noexcept { return point->size(); }
};

/// Where a range begins in a packed buffer.
[[nodiscard]] inline std::size_t offset_of(std::span<const std::size_t> counts, int which) noexcept {
  return std::accumulate(counts.begin(), counts.begin() + which, std::size_t{0});
}
[[nodiscard]] inline std::size_t total_of(std::span<const std::size_t> counts) noexcept {
  return offset_of(counts, static_cast<int>(counts.size()));
}

inline void check_counts(std::span<const std::size_t> counts, int ranks, const char* what, where at) {
  if (counts.size() != static_cast<std::size_t>(ranks)) {
    throw usage_error(std::string(what) + ": " + std::to_string(counts.size()) + " counts for a group of " +
                          std::to_string(ranks) + " ranks",
                      at);
  }
}
inline void check_length(std::size_t given, std::size_t needed, const char* what, where at) {
  if (given != needed) {
    throw usage_error(std::string(what) + " holds " + std::to_string(given) + " elements; this call needs " +
                          std::to_string(needed),
                      at);
  }
}
/// Input and output may be the same memory only where the operation says so.
inline void check_overlap(const void* in, std::size_t in_bytes, const void* out, std::size_t out_bytes, const void* allowed,
                          const char* what, where at) {
  if (in_bytes == 0 || out_bytes == 0 || in == allowed) return;
  const auto* a = static_cast<const std::byte*>(in);
  const auto* b = static_cast<const std::byte*>(out);
  const std::less<const std::byte*> before;
  if (before(a, b + out_bytes) && before(b, a + in_bytes)) {
    throw usage_error(std::string(what) + ": input and output overlap other than in place", at);
  }
}

inline void barrier(party me, where at) {
  me.point->enter(me.rank, {{operation::barrier, reduction::none, {}, -1, 0, 0}, nullptr, nullptr, {}, {}}, at);
  me.point->leave_at_once(me.rank);
}

template <reducible T, reduction_tag Op>
void all_reduce(party me, std::span<T> inout, Op, where at) {
  const fingerprint print{operation::all_reduce, Op::code, element_code_of<T>(), -1, inout.size(), 0};
  me.point->enter(me.rank, {print, inout.data(), inout.data(), {}, {}}, at);
  // Each rank's slice, whole cache lines, goes from all buffers into all buffers in one pass.
  const auto ranks = static_cast<std::size_t>(me.size());
  constexpr std::size_t line = 64 / sizeof(T) > 0 ? 64 / sizeof(T) : 1;
  const std::size_t slice = ((inout.size() + ranks - 1) / ranks + line - 1) / line * line;
  const std::size_t begin = std::min(inout.size(), slice * static_cast<std::size_t>(me.rank));
  const std::size_t count = std::min(slice, inout.size() - begin);
  if (ranks > 1 && count > 0) {
    const auto buffer = [&](int q) { return static_cast<T*>(me.point->of(me.rank, q).output); };
    reduce_elements<Op, T>(me.size(), buffer, me.size(), buffer, begin, count);
  }
  me.point->leave(me.rank);
}

template <reducible T, reduction_tag Op>
void reduce_scatter_v(party me, std::span<T> inout, std::span<const std::size_t> counts, Op, where at) {
  check_counts(counts, me.size(), "reduce_scatter_v", at);
  check_length(inout.size(), total_of(counts), "reduce_scatter_v: the buffer", at);
  const fingerprint print{operation::reduce_scatter_v, Op::code, element_code_of<T>(), -1, inout.size(), shape_of(counts)};
  me.point->enter(me.rank, {print, inout.data(), inout.data(), {}, {}}, at);
  if (me.size() > 1) {
    const auto source = [&](int q) { return static_cast<const T*>(me.point->of(me.rank, q).input); };
    const auto mine = [&](int) { return inout.data(); };
    reduce_elements<Op, T>(me.size(), source, 1, mine, offset_of(counts, me.rank), counts[static_cast<std::size_t>(me.rank)]);
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
    const auto source = [&](int q) { return static_cast<const T*>(me.point->of(me.rank, q).input); };
    const auto mine = [&](int) { return out.data(); };
    reduce_elements<Op, T>(me.size(), source, 1, mine, first, out.size(), -static_cast<std::ptrdiff_t>(first));
  }
  me.point->leave(me.rank);
}

template <transferable T>
void all_gather(party me, std::span<const T> in, std::span<T> out, where at) {
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank);
  check_length(out.size(), in.size() * static_cast<std::size_t>(me.size()), "all_gather: the output", at);
  check_overlap(in.data(), in.size_bytes(), out.data(), out.size_bytes(), out.data() + own, "all_gather", at);
  const fingerprint print{operation::all_gather, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  me.point->enter(me.rank, {print, in.data(), out.data(), {}, {}}, at);
  for (int k = 0; k < me.size(); ++k) {  // everybody begins at another peer
    const int q = (me.rank + k) % me.size();
    const T* theirs = static_cast<const T*>(me.point->of(me.rank, q).input);
    copy_elements(out.data() + in.size() * static_cast<std::size_t>(q), theirs, in.size());
  }
  me.point->leave(me.rank);
}

template <transferable T>
void all_gather_v(party me, std::span<T> inout, std::span<const std::size_t> counts, where at) {
  check_counts(counts, me.size(), "all_gather_v", at);
  check_length(inout.size(), total_of(counts), "all_gather_v: the buffer", at);
  const fingerprint print{operation::all_gather_v, reduction::none, element_code_of<T>(), -1, inout.size(), shape_of(counts)};
  me.point->enter(me.rank, {print, inout.data(), inout.data(), {}, {}}, at);
  for (int k = 1; k < me.size(); ++k) {
    const int q = (me.rank + k) % me.size();
    const std::size_t first = offset_of(counts, q);
    const T* theirs = static_cast<const T*>(me.point->of(me.rank, q).input);
    if (counts[static_cast<std::size_t>(q)] > 0) {
      copy_elements(inout.data() + first, theirs + first, counts[static_cast<std::size_t>(q)]);
    }
  }
  me.point->leave(me.rank);
}

template <transferable T>
void all_to_all(party me, std::span<const T> in, std::span<T> out, where at) {
  check_length(out.size(), in.size(), "all_to_all: the output", at);
  check_overlap(in.data(), in.size_bytes(), out.data(), out.size_bytes(), nullptr, "all_to_all", at);
  const auto ranks = static_cast<std::size_t>(me.size());
  if (in.size() % ranks != 0) {
    throw usage_error("all_to_all: " + std::to_string(in.size()) + " elements do not divide among " +
                          std::to_string(ranks) + " ranks; use all_to_all_v",
                      at);
  }
  const std::size_t part = in.size() / ranks;
  const fingerprint print{operation::all_to_all, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  me.point->enter(me.rank, {print, in.data(), out.data(), {}, {}}, at);
  for (int k = 0; k < me.size() && part > 0; ++k) {
    const int q = (me.rank + k) % me.size();
    const T* theirs = static_cast<const T*>(me.point->of(me.rank, q).input);
    copy_elements(out.data() + part * static_cast<std::size_t>(q), theirs + part * static_cast<std::size_t>(me.rank), part);
  }
  me.point->leave(me.rank);
}

/// What i sends to j must be what j expects of i. Every rank compares all pairs, so that all come to the same
/// verdict before anything is written.
inline std::string first_unequal_pair(party me) {
  for (int from = 0; from < me.size(); ++from) {
    for (int to = 0; to < me.size(); ++to) {
      const std::size_t sent = me.point->of(me.rank, from).send_counts[static_cast<std::size_t>(to)];
      const std::size_t expected = me.point->of(me.rank, to).receive_counts[static_cast<std::size_t>(from)];
      if (sent == expected) continue;
      return "rank " + std::to_string(me.point->world_rank(from)) + " sends " + std::to_string(sent) + " elements to rank " +
             std::to_string(me.point->world_rank(to)) + " at " + me.point->site_of(me.rank, from).text() +
             ", which expects " + std::to_string(expected) + " at " + me.point->site_of(me.rank, to).text();
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
  check_overlap(in.data(), in.size_bytes(), out.data(), out.size_bytes(), nullptr, "all_to_all_v", at);
  const fingerprint print{operation::all_to_all_v, reduction::none, element_code_of<T>(), -1, 0, 0};
  me.point->enter(me.rank, {print, in.data(), out.data(), send_counts, receive_counts}, at);
  std::string unequal = first_unequal_pair(me);
  if (!unequal.empty()) {
    me.point->leave(me.rank);  // until here peers read this rank's counts
    me.point->refuse(me.rank, {}, unequal, "");
  }
  for (int k = 0; k < me.size(); ++k) {
    const int q = (me.rank + k) % me.size();
    const std::size_t count = receive_counts[static_cast<std::size_t>(q)];
    if (count == 0) continue;
    const contribution& theirs = me.point->of(me.rank, q);
    copy_elements(out.data() + offset_of(receive_counts, q),
                  static_cast<const T*>(theirs.input) + offset_of(theirs.send_counts, me.rank), count);
  }
  me.point->leave(me.rank);
}

template <transferable T>
void broadcast(party me, std::span<T> inout, int root, where at) {
  if (root < 0 || root >= me.size()) {
    throw usage_error("broadcast: root " + std::to_string(root) + " is no rank of a group of " + std::to_string(me.size()), at);
  }
  const fingerprint print{operation::broadcast, reduction::none, element_code_of<T>(), root, inout.size(), 0};
  me.point->enter(me.rank, {print, inout.data(), inout.data(), {}, {}}, at);
  copy_elements(inout.data(), static_cast<T*>(me.point->of(me.rank, root).output), inout.size());
  me.point->leave(me.rank);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
