// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives that move. Bytes go from the buffer of one rank to that of another without a stop where the buffers
// are seen; only where two ranks' parts change places within a buffer, one of the two moves both through a small block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host/arithmetic.hpp"
#include "belay/backend/host/collectives/party.hpp"
#include "belay/backend/host/collectives/reducing.hpp"
#include "belay/backend/host/collectives/staging.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Where a part lies and how long it is, in bytes.
struct part {
  std::size_t first = 0;
  std::size_t bytes = 0;
};

/// Where all buffers are seen a rank stores its bytes into its peers' rather than that they fetch them: its own are in
/// its cache, theirs would come out of it line by line.
[[nodiscard]] inline bool stores_into_peers(algorithm how) noexcept {
  return how == algorithm::push || how == algorithm::one_shot;
}

/// Everybody's part to everybody: `from(q)` is rank q's part in its input, `to(q)` its place in this rank's output.
template <class From, class To>
void gather_parts(party me, const std::byte* in, std::byte* out, From from, To to) {
  std::size_t longest = 0, bytes = 0;
  for (int q = 0; q < me.size(); ++q) {
    longest = std::max(longest, from(q).bytes);
    bytes += from(q).bytes;
  }
  const algorithm how = way_of(me, bytes);
  const part own = from(me.rank());
  if (stores_into_peers(how)) {
    for (int k = 0; k < me.size(); ++k) {  // everybody begins at another peer
      const int q = (me.rank() + k) % me.size();
      std::byte* const place = me.point->output_of(q) + to(me.rank());
      if (place != in + own.first) fast_copy(place, in + own.first, own.bytes);
    }
    return;
  }
  if (how != algorithm::staged) {
    for (int k = 0; k < me.size(); ++k) {
      const int q = (me.rank() + k) % me.size();
      if (q == me.rank() && out + to(q) == in + from(q).first) continue;
      me.point->fetch(q, me.point->offer_of(q).input, from(q).first, out + to(q), from(q).bytes);
    }
    return;
  }
  through_staging<std::byte>(
      me, longest, 1,
      [&](stretch now, std::byte* half) { copy_elements(half, in + own.first + now.first, clipped(now, own.bytes)); },
      [&](stretch now, auto halves) {
        for (int q = 0; q < me.size(); ++q) {
          const std::size_t n = clipped(now, from(q).bytes);
          if (n > 0) std::memcpy(out + to(q) + now.first, halves(q), n);
        }
      });
}

template <class T>
[[nodiscard]] const std::byte* bytes_of(std::span<const T> of) noexcept {
  return reinterpret_cast<const std::byte*>(of.data());
}
template <class T>
[[nodiscard]] std::byte* bytes_of(std::span<T> of) noexcept {
  return reinterpret_cast<std::byte*>(of.data());
}

template <transferable T>
void all_gather(party me, std::span<const T> in, std::span<T> out, where at) {
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank());
  check_length(out.size(), in.size() * static_cast<std::size_t>(me.size()), "all_gather: the output", at);
  check_overlap(in.data(), in.size_bytes(), out.data(), out.size_bytes(), out.data() + own, "all_gather", at);
  const fingerprint print{operation::all_gather, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  const std::size_t each = in.size_bytes();
  if (fits_a_line(each, sizeof(T), me.size())) {
    me.point->swap(print, in.data(), each, me.limit, at);
    std::byte* to = bytes_of(out);
    for (int q = 0; q < me.size() && each > 0; ++q, to += each) std::memcpy(to, me.point->line_of(q), each);
    return;
  }
  me.point->enter(brings(print, in, out), me.limit, at);
  gather_parts(
      me, bytes_of(in), bytes_of(out), [&](int) { return part{0, each}; },
      [&](int q) { return static_cast<std::size_t>(q) * each; });
  me.point->leave();
}

template <transferable T>
void all_gather_v(party me, std::span<T> inout, std::span<const std::size_t> counts, where at) {
  check_counts(counts, me.size(), "all_gather_v", at);
  check_length(inout.size(), total_of(counts), "all_gather_v: the buffer", at);
  const fingerprint print{operation::all_gather_v, reduction::none, element_code_of<T>(), -1, inout.size(),
                          shape_of(counts)};
  me.point->enter(brings(print, inout, inout, counts), me.limit, at);
  expect_same_counts(me);
  const auto first = [&](int q) { return offset_of(counts, q) * sizeof(T); };
  gather_parts(
      me, bytes_of(inout), bytes_of(inout),
      [&](int q) { return part{first(q), counts[static_cast<std::size_t>(q)] * sizeof(T)}; }, first);
  me.point->leave();
}

template <transferable T>
void broadcast(party me, std::span<T> inout, int root, where at) {
  check_root(root, me.size(), "broadcast", at);
  const fingerprint print{operation::broadcast, reduction::none, element_code_of<T>(), root, inout.size(), 0};
  const std::size_t bytes = inout.size_bytes();
  const bool is_root = me.rank() == root;
  if (fits_a_line(bytes, sizeof(T), me.size())) {
    me.point->swap(print, inout.data(), is_root ? bytes : 0, me.limit, at);
    if (!is_root && bytes > 0) std::memcpy(inout.data(), me.point->line_of(root), bytes);
    return;
  }
  me.point->enter(brings(print, inout, inout), me.limit, at);
  if (way_of(me, bytes) != algorithm::staged) {
    if (!is_root) me.point->fetch(root, me.point->offer_of(root).input, 0, inout.data(), bytes);
  } else {
    through_staging<std::byte>(
        me, bytes, 1,
        [&](stretch now, std::byte* half) {
          if (is_root) std::memcpy(half, bytes_of(inout) + now.first, now.count);
        },
        [&](stretch now, auto halves) {
          if (!is_root) std::memcpy(bytes_of(inout) + now.first, halves(root), now.count);
        });
  }
  me.point->leave();
}

template <transferable T>
void gather(party me, std::span<const T> in, std::span<T> out, int root, where at) {
  check_root(root, me.size(), "gather", at);
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank());
  const bool is_root = me.rank() == root;
  if (is_root) {  // nobody else has an output
    check_length(out.size(), in.size() * static_cast<std::size_t>(me.size()), "gather: the root's output", at);
    check_overlap(in.data(), in.size_bytes(), out.data(), out.size_bytes(), out.data() + own, "gather", at);
  }
  const fingerprint print{operation::gather, reduction::none, element_code_of<T>(), root, in.size(), 0};
  const std::size_t each = in.size_bytes();
  std::byte* to = bytes_of(out);
  if (fits_a_line(each, sizeof(T), me.size())) {
    me.point->swap(print, in.data(), each, me.limit, at);
    for (int q = 0; q < me.size() && is_root && each > 0; ++q, to += each) std::memcpy(to, me.point->line_of(q), each);
    return;
  }
  me.point->enter(brings(print, in, is_root ? out : std::span<T>()), me.limit, at);
  const algorithm how = way_of(me, each);
  if (how != algorithm::staged && how != algorithm::kernel_copy) {
    T* const place = me.output_of<T>(root) + own;
    if (place != in.data()) fast_copy(place, in.data(), each);
  } else if (how == algorithm::kernel_copy) {
    for (int q = 0; q < me.size() && is_root; ++q, to += each) {
      if (q != root || to != bytes_of(in)) me.point->fetch(q, me.point->offer_of(q).input, 0, to, each);
    }
  } else {
    through_staging<std::byte>(
        me, each, 1, [&](stretch now, std::byte* half) { std::memcpy(half, bytes_of(in) + now.first, now.count); },
        [&](stretch now, auto halves) {
          for (int q = 0; q < me.size() && is_root; ++q) {
            std::memcpy(to + static_cast<std::size_t>(q) * each + now.first, halves(q), now.count);
          }
        });
  }
  me.point->leave();
}

template <transferable T>
void scatter(party me, std::span<const T> in, std::span<T> out, int root, where at) {
  check_root(root, me.size(), "scatter", at);
  const std::size_t own = out.size() * static_cast<std::size_t>(me.rank());
  const bool is_root = me.rank() == root;
  if (is_root) {  // nobody else has an input
    check_length(in.size(), out.size() * static_cast<std::size_t>(me.size()), "scatter: the root's input", at);
    check_overlap(out.data(), out.size_bytes(), in.data(), in.size_bytes(), in.data() + own, "scatter", at);
  }
  const fingerprint print{operation::scatter, reduction::none, element_code_of<T>(), root, out.size(), 0};
  const std::size_t each = out.size_bytes(), all = each * static_cast<std::size_t>(me.size());
  const std::size_t first = own * sizeof(T);
  if (fits_a_line(all, sizeof(T), me.size())) {
    me.point->swap(print, in.data(), is_root ? all : 0, me.limit, at);
    if (each > 0) std::memcpy(out.data(), me.point->line_of(root) + first, each);
    return;
  }
  me.point->enter(brings(print, is_root ? in : std::span<const T>(), out), me.limit, at);
  if (way_of(me, each) != algorithm::staged) {
    if (!is_root || out.data() != in.data() + own) {
      me.point->fetch(root, me.point->offer_of(root).input, first, out.data(), each);
    }
  } else {
    through_staging<std::byte>(
        me, each, static_cast<std::size_t>(me.size()),
        [&](stretch now, std::byte* half) {
          for (int q = 0; q < me.size() && is_root; ++q, half += now.count) {
            std::memcpy(half, bytes_of(in) + static_cast<std::size_t>(q) * each + now.first, now.count);
          }
        },
        [&](stretch now, auto halves) {
          std::memcpy(bytes_of(out) + now.first, halves(root) + static_cast<std::size_t>(me.rank()) * now.count, now.count);
        });
  }
  me.point->leave();
}

/// All parts to where they go. `sent(from, to)` is a part in the input of `from`, `received(to, from)` its place in
/// the output of `to`. Each rank fetches its own; but where one of a pair works in place, what either sends lies
/// where the other's shall be, and one of the two (of all pairs each rank gets half) moves both; or, where buffers
/// are not seen, all parts go through staging.
template <class Sent, class Received>
void move_parts(party me, const std::byte* in, std::byte* out, Sent sent, Received received) {
  const auto in_place = [&](int q) {
    const offer theirs = me.point->offer_of(q);
    return theirs.input == theirs.output;
  };
  bool any_in_place = false;
  std::size_t longest = 0, bytes = 0;
  for (int from = 0; from < me.size(); ++from) {
    any_in_place = any_in_place || in_place(from);
    for (int to = 0; to < me.size(); ++to) {
      longest = std::max(longest, sent(from, to).bytes);
      bytes += sent(from, to).bytes;
    }
  }
  const algorithm how = way_of(me, bytes / static_cast<std::size_t>(me.size()));
  if (stores_into_peers(how) && !any_in_place) {
    for (int k = 0; k < me.size(); ++k) {  // everybody begins at another peer
      const int q = (me.rank() + k) % me.size();
      const part mine = sent(me.rank(), q);
      fast_copy(me.point->output_of(q) + received(q, me.rank()).first, in + mine.first, mine.bytes);
    }
  } else if (how != algorithm::staged && how != algorithm::kernel_copy) {
    for (int k = 0; k < me.size(); ++k) {
      const int q = (me.rank() + k) % me.size();
      const part mine = received(me.rank(), q);
      if (mine.bytes == 0) continue;
      const auto input = [&](int of) { return me.point->input_of(of) + sent(of, of == q ? me.rank() : q).first; };
      const auto output = [&](int of) { return me.point->output_of(of) + received(of, of == q ? me.rank() : q).first; };
      if (!in_place(me.rank()) && !in_place(q)) {
        fast_copy(out + mine.first, me.point->input_of(q) + sent(q, me.rank()).first, mine.bytes);
      } else if (q != me.rank() && ((me.rank() + q) % 2 == 0) == (me.rank() < q)) {
        cross_bytes(input(me.rank()), output(q), input(q), output(me.rank()), mine.bytes);
      }
    }
  } else if (!any_in_place && how == algorithm::kernel_copy) {
    for (int k = 0; k < me.size(); ++k) {
      const int q = (me.rank() + k) % me.size();
      const part mine = received(me.rank(), q);
      me.point->fetch(q, me.point->offer_of(q).input, sent(q, me.rank()).first, out + mine.first, mine.bytes);
    }
  } else {
    through_staging<std::byte>(
        me, longest, static_cast<std::size_t>(me.size()),
        [&](stretch now, std::byte* half) {
          for (int q = 0; q < me.size(); ++q, half += now.count) {
            const part mine = sent(me.rank(), q);
            const std::size_t n = clipped(now, mine.bytes);
            if (n > 0) std::memcpy(half, in + mine.first + now.first, n);
          }
        },
        [&](stretch now, auto halves) {
          for (int q = 0; q < me.size(); ++q) {
            const part mine = received(me.rank(), q);
            const std::size_t n = clipped(now, mine.bytes);
            if (n == 0) continue;
            std::memcpy(out + mine.first + now.first, halves(q) + static_cast<std::size_t>(me.rank()) * now.count, n);
          }
        });
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
  const std::size_t each = in.size_bytes() / ranks;
  const fingerprint print{operation::all_to_all, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  if (fits_a_line(in.size_bytes(), sizeof(T), me.size())) {
    me.point->swap(print, in.data(), in.size_bytes(), me.limit, at);
    std::byte* to = bytes_of(out);
    const std::size_t first = each * static_cast<std::size_t>(me.rank());
    for (int q = 0; q < me.size() && each > 0; ++q, to += each) std::memcpy(to, me.point->line_of(q) + first, each);
    return;
  }
  me.point->enter(brings(print, in, out), me.limit, at);
  const auto part_for = [&](int, int other) { return part{each * static_cast<std::size_t>(other), each}; };
  move_parts(me, bytes_of(in), bytes_of(out), part_for, part_for);
  me.point->leave();
}

/// What i sends to j must be what j expects of i. Every rank compares all pairs, so that all come to the same
/// verdict before anything is written: the ranks with the most pairs that do not fit are to blame.
inline void expect_equal_pairs(party me) {
  const int size = me.size();
  const auto sent = [&](int from, int to) { return me.point->send_counts_of(from)[static_cast<std::size_t>(to)]; };
  const auto expected = [&](int from, int to) { return me.point->receive_counts_of(to)[static_cast<std::size_t>(from)]; };
  const auto unequal = [&](int who) {
    int out = 0;
    for (int q = 0; q < size; ++q) out += (sent(who, q) != expected(who, q)) + (sent(q, who) != expected(q, who));
    return out;
  };
  int most = 0;
  for (int q = 0; q < size; ++q) most = std::max(most, unequal(q));
  if (most == 0) return;
  std::vector<int> culprits;
  int first = -1;
  for (int q = 0; q < size; ++q) {
    if (unequal(q) < most) continue;
    if (first < 0) first = q;
    culprits.push_back(me.point->world_rank(q));
  }
  int from = 0, to = 0;  // the first pair of the first of them
  for (int q = size - 1; q >= 0; --q) {
    if (sent(q, first) != expected(q, first)) {
      from = q;
      to = first;
    }
    if (sent(first, q) != expected(first, q)) {
      from = first;
      to = q;
    }
  }
  me.point->refuse(culprits,
                   "rank " + std::to_string(me.point->world_rank(from)) + " sends " + std::to_string(sent(from, to)) +
                       " elements to rank " + std::to_string(me.point->world_rank(to)) + " at " +
                       me.point->site_of(from) + ", which expects " + std::to_string(expected(from, to)) + " at " +
                       me.point->site_of(to),
                   me.point->site_of(first));
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
  me.point->enter(brings(print, in, out, send_counts, receive_counts), me.limit, at);
  expect_equal_pairs(me);
  const auto in_vector = [](std::span<const std::uint64_t> counts, int which) {
    return part{offset_of(counts, which) * sizeof(T), counts[static_cast<std::size_t>(which)] * sizeof(T)};
  };
  move_parts(
      me, bytes_of(in), bytes_of(out), [&](int from, int to) { return in_vector(me.point->send_counts_of(from), to); },
      [&](int to, int from) { return in_vector(me.point->receive_counts_of(to), from); });
  me.point->leave();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
