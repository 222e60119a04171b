// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Operations in which every rank has something else for every other: all_to_all and all_to_all_v. Only where two ranks'
// parts change places within a buffer, each of the two moves a half of both through a small block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host/collectives/moving.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/collective.hpp"
#include "belay/comm/reduce_blocks.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// All parts to where they go, `bytes` a rank on average. `sent(from, to)` is a part in the input of `from`,
/// `received(to, from)` its place in the output of `to`. Each rank fetches its own; but where one of a pair works in
/// place, what either sends lies where the other's shall be, and each moves a half of both; or, where buffers are not
/// seen, all parts go through staging.
template <class Sent, class Received, class Context>
void move_parts(Context me, const std::byte* in, std::byte* out, std::size_t bytes, Sent sent, Received received) {
  const auto in_place = [&](int q) { return me.endpoint->descriptor_of(q).is_in_place(); };
  const bool any_in_place = me.endpoint->any_in_place();
  const auto [how, by] = variant_of(me, bytes);
  if (stores_into_peers(how) && !any_in_place) {
    const byte_range own = sent(me.rank(), me.rank());
    me.copies().push_by(by, out + received(me.rank(), me.rank()).first, in + own.first, own.bytes, bytes, bytes);
    for (int k = 1; k < me.size(); ++k) {  // everybody begins at another peer
      const int q = me.behind(k);
      const byte_range mine = sent(me.rank(), q);
      me.copies().push_by(by, me.endpoint->output_of(q) + received(q, me.rank()).first, in + mine.first, mine.bytes, bytes, bytes);
    }
  } else if (how != algorithm::staged && how != algorithm::cma) {
    for (int k = 0; k < me.size(); ++k) {
      const int q = me.behind(k);
      const byte_range mine = received(me.rank(), q);
      if (mine.bytes == 0) continue;
      const auto input = [&](int of) { return me.endpoint->input_of(of) + sent(of, of == q ? me.rank() : q).first; };
      const auto output = [&](int of) {
        return me.endpoint->output_of(of) + received(of, of == q ? me.rank() : q).first;
      };
      if (!in_place(me.rank()) && !in_place(q)) {
        me.copies().copy_by(by, out + mine.first, me.endpoint->input_of(q) + sent(q, me.rank()).first, mine.bytes);
      } else if (q != me.rank()) {  // either of the two moves one half of both parts
        const std::size_t half = mine.bytes / 2 / 64 * 64;
        const std::size_t first = me.rank() < q ? 0 : half, length = me.rank() < q ? half : mine.bytes - half;
        cross_bytes(input(me.rank()) + first, output(q) + first, input(q) + first, output(me.rank()) + first, length);
      }
    }
  } else if (!any_in_place && how == algorithm::cma) {
    for (int k = 0; k < me.size(); ++k) {
      const int q = me.behind(k);
      const byte_range mine = received(me.rank(), q);
      me.endpoint->fetch(q, me.endpoint->descriptor_of(q).input, sent(q, me.rank()).first, out + mine.first,
                         mine.bytes);
    }
  } else {
    const byte_range own = sent(me.rank(), me.rank());
    me.copies().copy(out + received(me.rank(), me.rank()).first, in + own.first, own.bytes);  // (in place: nothing)
    std::size_t longest = 0;
    for (int from = 0; from < me.size(); ++from) {
      for (int to = 0; to < me.size(); ++to) longest = std::max(longest, from == to ? 0 : sent(from, to).bytes);
    }
    through_staging<std::byte>(
        me, longest, static_cast<std::size_t>(me.size()),
        [&](round_range now, std::byte* half) {
          for (int k = 1; k < me.size(); ++k) {
            const int q = me.behind(k);
            const byte_range mine = sent(me.rank(), q);
            stage_copy(me, half + index_of(q) * now.count, in + mine.first + now.first, clipped(now, mine.bytes));
          }
        },
        [&](round_range now, auto halves) {
          for (int k = 1; k < me.size(); ++k) {
            const int q = me.behind(k);
            const byte_range mine = received(me.rank(), q);
            const std::byte* const place = halves(q) + index_of(me.rank()) * now.count;
            me.copies().copy(out + mine.first + now.first, place, clipped(now, mine.bytes));
          }
        });
  }
}

template <transferable T, class Context>
void all_to_all(Context me, std::span<const T> in, std::span<T> out, const where& at) {
  check_all_to_all(in, out, me.size(), at);
  const std::size_t each = share_of(in.size_bytes(), me.size());
  const fingerprint print{operation::all_to_all, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  if (const algorithm how = me.endpoint->eager_algorithm(in.size_bytes(), sizeof(T), eager_traffic::all_in_parts);
      how != algorithm::automatic) {
    me.endpoint->eager_round(how, print, in.data(), in.size_bytes(), me.limit, at);
    const peer_payloads payloads = me.endpoint->payloads();
    std::byte* to = bytes_of(out);
    const std::size_t first = each * static_cast<std::size_t>(me.rank());
    for (int q = 0; q < me.size(); ++q, to += each) copy_elements(to, payloads(q) + first, each);
    return;
  }
  me.endpoint->enter_rendezvous(call_buffers_of(print, in, out), me.limit, at);
  const auto part_for = [&](int, int other) { return byte_range{each * static_cast<std::size_t>(other), each}; };
  move_parts(me, bytes_of(in), bytes_of(out), in.size_bytes(), part_for, part_for);
  me.endpoint->exit_rendezvous();
}

/// What i sends to j must be what j expects of i. Every rank compares all pairs, so that all come to the same
/// verdict before anything is written: the ranks with the most pairs that do not fit are to blame.
template <class Context>
void expect_equal_pairs(Context me) {
  const auto sent = [&](int from, int to) { return me.endpoint->send_counts_of(from)[static_cast<std::size_t>(to)]; };
  const auto expected = [&](int from, int to) {
    return me.endpoint->receive_counts_of(to)[static_cast<std::size_t>(from)];
  };
  const std::optional<unequal_pairs> found = find_unequal_pairs(me.size(), sent, expected);
  if (!found) return;
  const auto [ranks, from, to] = *found;
  std::vector<int> culprits;
  for (int rank : ranks) culprits.push_back(me.endpoint->world_rank(rank));
  me.endpoint->refuse(culprits,
                      "rank " + std::to_string(me.endpoint->world_rank(from)) + " sends " +
                          std::to_string(sent(from, to)) + " elements to rank " +
                          std::to_string(me.endpoint->world_rank(to)) + " at " + me.endpoint->site_of(from) +
                          ", which expects " + std::to_string(expected(from, to)) + " at " + me.endpoint->site_of(to),
                      me.endpoint->site_of(ranks.front()));
}

template <transferable T, class Context>
void all_to_all_v(Context me, std::span<const T> in, std::span<const std::size_t> send_counts, std::span<T> out,
                  std::span<const std::size_t> receive_counts, const where& at) {
  check_all_to_all_v(in, send_counts, out, receive_counts, me.size(), at);
  const fingerprint print{operation::all_to_all_v, reduction::none, element_code_of<T>(), -1, 0, 0};
  counted_call_buffers mine = call_buffers_of(print, in, out, send_counts, receive_counts);
  // Nobody knows yet how much the others bring: who brings little puts it into its page in any case.
  const bool eager_buffers = me.endpoint->forced_algorithm() == algorithm::automatic;
  if (eager_buffers && in.size_bytes() <= eager_buffer_bytes(me.size())) mine.eager_bytes = in.size_bytes();
  me.endpoint->enter_rendezvous(mine, me.limit, at);
  expect_equal_pairs(me);
  const auto in_vector = [](std::span<const std::size_t> counts, int which) {
    return byte_range{offset_of(counts, which) * sizeof(T), counts[static_cast<std::size_t>(which)] * sizeof(T)};
  };
  bool all_in_eager_buffers = eager_buffers;
  std::size_t total = 0;
  for (int q = 0; q < me.size(); ++q) {
    const std::size_t theirs = total_of(me.endpoint->send_counts_of(q)) * sizeof(T);
    all_in_eager_buffers = all_in_eager_buffers && theirs <= eager_buffer_bytes(me.size());
    total += theirs;
  }
  if (all_in_eager_buffers) {
    for (int q = 0; q < me.size(); ++q) {
      const byte_range from = in_vector(me.endpoint->send_counts_of(q), me.rank());
      const std::size_t to = in_vector(me.endpoint->receive_counts_of(me.rank()), q).first;
      copy_elements(bytes_of(out) + to, me.endpoint->eager_buffers()(q) + from.first, from.bytes);
    }
    me.endpoint->exit_without_wait();
    return;
  }
  move_parts(
      me, bytes_of(in), bytes_of(out), share_of(total, me.size()),
      [&](int from, int to) { return in_vector(me.endpoint->send_counts_of(from), to); },
      [&](int to, int from) { return in_vector(me.endpoint->receive_counts_of(to), from); });
  me.endpoint->exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
