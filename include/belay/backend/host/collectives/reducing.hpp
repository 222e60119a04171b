// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives that reduce. Every rank computes a slice from its peers' buffers, in rank order, and stores
// it where it belongs; blocks of the arithmetic are all that is staged.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/bounce_buffers.hpp"
#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/backend/host/copy/reduce_simd.hpp"
#include "belay/comm/reduce_blocks.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A rank's share of `length` elements, whole cache lines.
template <class T>
[[nodiscard]] round_range slice_of(std::size_t length, int rank, int ranks) noexcept {
  constexpr std::size_t line = 64 / sizeof(T) > 0 ? 64 / sizeof(T) : 1;
  const std::size_t slice = (share_of(length + static_cast<std::size_t>(ranks) - 1, ranks) + line - 1) / line * line;
  const std::size_t begin = std::min(length, slice * static_cast<std::size_t>(rank));
  return {begin, std::min(slice, length - begin)};
}

/// Reduces what all ranks have from `first` on, `count` elements, into as many destinations: by vectors where two ranks
/// add floats, `by` tells how. Usually around the caches where the machine wants that for a copy that touches as much
/// as the operation does: of `like_copy_of` bytes. `own` is the destination of two that is this rank's.
template <class Op, class T, class Source, class Destination, class Context>
void reduce_seen(Context me, Source source, int destinations, Destination destination, std::size_t count,
                 std::size_t like_copy_of, memory_access by = memory_access::automatic, int own = 0) {
  if (count == 0) return;
  if (me.size() != 2 || destinations > 2) {
    reduce_elements<Op, T>(me.size(), source, destinations, destination, 0, count);
    return;
  }
  T* const to = destination(0);
  T* const also_to = destinations == 2 ? destination(1) : nullptr;
  const T* const first = source(0);
  const T* const second = source(1);
  // Where a destination is a source its lines have been read: to store around the caches would first throw them out.
  const bool in_place = first == to || first == also_to || second == to || second == also_to;
  if (by == memory_access::automatic && !in_place && me.copies().non_temporal(like_copy_of)) by = memory_access::non_temporal;
  reduce_two<Op, T>(to, also_to, first, second, count, by, own);
}

/// What a rank reduces where not all buffers are seen: `count` elements from `first` of all inputs into `out`.
/// Peers' parts are copied by the kernel into this rank's staging.
template <class Op, class T, class Context>
void reduce_fetched(Context me, std::size_t first, std::span<T> out) {
  const int ranks = me.size();
  const auto others = static_cast<std::size_t>(std::max(ranks - 1, 1));
  const std::size_t room = 2 * me.endpoint->staging_room() / (others * sizeof(T)) / 64 * 64;
  T* const staged = reinterpret_cast<T*>(me.endpoint->staging_of(me.rank(), 0));
  const auto place_of = [&](int q) { return staged + static_cast<std::size_t>(q > me.rank() ? q - 1 : q) * room; };
  const T* const own = static_cast<const T*>(me.endpoint->own_input()) + first;
  for (round_range now; now.first < out.size(); now.first += now.count) {
    now.count = std::min(room, out.size() - now.first);
    for (int q = 0; q < ranks; ++q) {
      if (q == me.rank()) continue;
      me.endpoint->fetch(q, me.endpoint->descriptor_of(q).input, (first + now.first) * sizeof(T), place_of(q),
                         now.count * sizeof(T));
    }
    const auto source = [&](int q) { return q == me.rank() ? own + now.first : place_of(q); };
    const auto target = [&](int) { return out.data() + now.first; };
    reduce_seen<Op, T>(me, source, 1, target, now.count, 0);
  }
}

/// An all_reduce of buffers that peers do not see. Small ones are staged whole, and every rank reduces all. Of larger
/// ones each rank stages the others' slices of a stretch, reduces its own slice of all ranks' and stages the result,
/// which the others take while the next stretch is on its way.
template <class Op, class T, class Context>
void all_reduce_staged(Context me, std::span<const T> in, std::span<T> out) {
  if (out.size_bytes() <= most_staged_one_shot) {
    through_staging<T>(
        me, out.size(), 1,
        [&](round_range now, T* half) { stage_copy(me, half, in.data() + now.first, now.count * sizeof(T)); },
        [&](round_range now, auto halves) {
          reduce_seen<Op, T>(
              me, halves, 1, [&](int) { return out.data() + now.first; }, now.count, 0);
        });
    return;
  }
  const bool around = me.endpoint->chosen().by == memory_access::non_temporal;
  const auto half_of = [&](int q, std::size_t turn) { return reinterpret_cast<T*>(me.endpoint->staging_of(q, turn)); };
  const std::size_t room = me.endpoint->staging_room() / sizeof(T);
  const std::size_t turns = (out.size() + room - 1) / room;
  const std::size_t most = (out.size() + turns - 1) / turns;
  // Slices lie where they lie in the longest stretch: a result may still be read there while the slices beside it are
  // filled for the turn after the next.
  const auto slice_in = [&](round_range now, int q) {
    const round_range whole = slice_of<T>(most, q, me.size());
    return round_range{whole.first, clipped(whole, now.count)};
  };
  const auto each_slice = [&](round_range now, auto copy) {
    for (int q = 0; q < me.size(); ++q) {
      const round_range slice = slice_in(now, q);
      if (q != me.rank()) copy(q, slice.first, slice.count * sizeof(T));
    }
  };
  const auto stage = [&](round_range now, std::size_t turn) {
    T* const half = half_of(me.rank(), turn);
    each_slice(now, [&](int, std::size_t first, std::size_t bytes) {
      stage_copy(me, half + first, in.data() + now.first + first, bytes, out.size_bytes());
    });
  };
  const auto take = [&](round_range now, std::size_t turn) {
    each_slice(now, [&](int q, std::size_t first, std::size_t bytes) {
      me.copies().copy(out.data() + now.first + first, half_of(q, turn) + first, bytes, out.size_bytes());
    });
  };
  std::size_t turn = 0;
  round_range last;
  for (round_range now; now.first < out.size(); last = now, now.first += now.count, ++turn) {
    now.count = std::min(most, out.size() - now.first);
    stage(now, turn);
    me.endpoint->round();
    const round_range mine = slice_in(now, me.rank());
    const auto source = [&](int q) { return (q == me.rank() ? in.data() + now.first : half_of(q, turn)) + mine.first; };
    const auto target = [&](int d) {
      return (d == 0 ? out.data() + now.first : half_of(me.rank(), turn)) + mine.first;
    };
    reduce_seen<Op, T>(me, source, 2, target, mine.count, 0,
                       around ? memory_access::non_temporal_remote : memory_access::automatic);
    if (turn > 0) take(last, turn - 1);
  }
  me.endpoint->round();
  take(last, turn - 1);
}

/// The elements [first, first + out.size()) of what all ranks payloads to a small operation, reduced.
template <class Op, class T, class Context>
void reduce_brought(Context me, peer_payloads payloads, std::size_t first, std::span<T> out) {
  const auto source = [payloads, first](int q) { return reinterpret_cast<const T*>(payloads(q)) + first; };
  if (out.size_bytes() > flag_payload_bytes) {
    reduce_seen<Op, T>(
        me, source, 1, [&](int) { return out.data(); }, out.size(), 0);
    return;
  }
  using accumulator = accumulator_of<T>;
  const int ranks = me.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    auto total = static_cast<accumulator>(source(0)[i]);
    for (int q = 1; q < ranks; ++q) total = Op::apply(total, static_cast<accumulator>(source(q)[i]));
    if constexpr (finishing<Op>) total = Op::finish(total, ranks);
    out[i] = static_cast<T>(total);
  }
}

template <reducible T, reduction_tag Op, class Context>
void all_reduce(Context me, std::span<const T> in, std::span<T> out, Op, const where& at) {
  check_length(out.size(), in.size(), "all_reduce: the output", at);
  check_overlap(in, out, out.data(), "all_reduce", at);
  const fingerprint print{operation::all_reduce, Op::code, element_code_of<T>(), -1, out.size(), 0};
  if (const algorithm how = me.endpoint->eager_algorithm(out.size_bytes(), sizeof(T)); how != algorithm::automatic) {
    me.endpoint->eager_round(how, print, in.data(), in.size_bytes(), me.limit, at);
    return reduce_brought<Op, T>(me, me.endpoint->payloads(), 0, out);
  }
  me.endpoint->enter_rendezvous(call_buffers_of(print, in, out), me.limit, at);
  if (me.endpoint->all_in_eager_buffers()) {
    reduce_brought<Op, T>(me, me.endpoint->eager_buffers(), 0, out);
    return me.endpoint->exit_without_wait();
  }
  const round_range mine = slice_of<T>(out.size(), me.rank(), me.size());
  // This rank's input and output, and of the peers' what they have of a slice.
  const std::size_t like_copy_of = in.size_bytes() + (in.size_bytes() - mine.count * sizeof(T)) / 2;
  const auto fetch_slices = [&] {
    me.endpoint->round();  // everybody's slice is done
    for (int k = 1; k < me.size(); ++k) {
      const int q = me.behind(k);
      const round_range theirs = slice_of<T>(out.size(), q, me.size());
      me.endpoint->fetch(q, me.endpoint->descriptor_of(q).output, theirs.first * sizeof(T), out.data() + theirs.first,
                         theirs.count * sizeof(T));
    }
  };
  const variant chosen = variant_of(me, out.size_bytes(), {.slices = true});
  switch (chosen.how) {
    case algorithm::one_shot: {
      const auto source = [&](int q) { return me.template input_of<T>(q); };
      reduce_seen<Op, T>(
          me, source, 1, [&](int) { return out.data(); }, out.size(), like_copy_of, chosen.by);
      break;
    }
    case algorithm::pull: {
      const auto source = [&](int q) { return me.template input_of<T>(q) + mine.first; };
      reduce_seen<Op, T>(
          me, source, 1, [&](int) { return out.data() + mine.first; }, mine.count, like_copy_of);
      fetch_slices();
      break;
    }
    case algorithm::cma:
      reduce_fetched<Op, T>(me, mine.first, out.subspan(mine.first, mine.count));
      fetch_slices();
      break;
    case algorithm::staged: all_reduce_staged<Op, T>(me, in, out); break;
    default: {
      const auto source = [&](int q) { return me.template input_of<T>(q) + mine.first; };
      const auto destination = [&](int q) { return me.template output_of<T>(q) + mine.first; };
      reduce_seen<Op, T>(me, source, me.size(), destination, mine.count, like_copy_of, chosen.by, me.rank());
      break;
    }
  }
  me.endpoint->exit_rendezvous();
}

template <reducible T, reduction_tag Op, class Context>
void reduce(Context me, std::span<const T> in, std::span<T> out, Op, int root, const where& at) {
  check_root(root, me.size(), "reduce", at);
  check_bytes(in, "reduce", at);
  const bool is_root = me.rank() == root;
  if (is_root) {  // nobody else has an output
    check_length(out.size(), in.size(), "reduce: the root's output", at);
    check_overlap(in, out, out.data(), "reduce", at);
  }
  const fingerprint print{operation::reduce, Op::code, element_code_of<T>(), root, in.size(), 0};
  if (const algorithm how = me.endpoint->eager_algorithm(in.size_bytes(), sizeof(T), eager_traffic::root);
      how != algorithm::automatic) {
    me.endpoint->eager_round(how, print, in.data(), in.size_bytes(), me.limit, at);
    if (is_root) reduce_brought<Op, T>(me, me.endpoint->payloads(), 0, out);
    return;
  }
  me.endpoint->enter_rendezvous(call_buffers_of(print, in, is_root ? out : std::span<T>()), me.limit, at);
  const variant chosen = variant_of(me, in.size_bytes(), {.root_reduces = true});
  switch (chosen.how) {
    case algorithm::cma:
      if (is_root) reduce_fetched<Op, T>(me, 0, out);
      break;
    case algorithm::staged:
      through_staging<T>(
          me, in.size(), 1,
          [&](round_range now, T* half) { stage_copy(me, half, in.data() + now.first, now.count * sizeof(T)); },
          [&](round_range now, auto halves) {
            if (is_root)
              reduce_seen<Op, T>(
                  me, halves, 1, [&](int) { return out.data() + now.first; }, now.count, 0);
          });
      break;
    default: {
      const round_range mine = slice_of<T>(in.size(), me.rank(), me.size());
      const auto source = [&](int q) { return me.template input_of<T>(q) + mine.first; };
      const auto destination = [&](int) { return me.template output_of<T>(root) + mine.first; };
      reduce_seen<Op, T>(me, source, 1, destination, mine.count, in.size_bytes(), chosen.by);
      break;
    }
  }
  me.endpoint->exit_rendezvous();
}

/// This rank's `out` becomes the reduction of all ranks' elements from `first(rank)` on, of which rank q has
/// `count(q)`; what the two operations below have in common once all have entered.
template <class Op, class T, class First, class Count, class Context>
void reduce_parts(Context me, std::span<const T> in, std::span<T> out, First first, Count count) {
  const std::size_t begin = first(me.rank());
  std::size_t longest = 0, total = 0;
  for (int q = 0; q < me.size(); ++q) {
    longest = std::max(longest, count(q));
    total += count(q);
  }
  const auto ranks = static_cast<std::size_t>(me.size());
  const variant chosen = variant_of(me, total * sizeof(T));
  switch (chosen.how) {
    case algorithm::cma: reduce_fetched<Op, T>(me, begin, out); break;
    case algorithm::staged:
      through_staging<T>(
          me, longest, ranks,
          [&](round_range now, T* half) {
            for (int q = 0; q < me.size(); ++q, half += now.count) {
              const std::size_t n = clipped(now, count(q));
              stage_copy(me, half, in.data() + first(q) + now.first, n * sizeof(T));
            }
          },
          [&](round_range now, auto halves) {
            const auto source = [&](int q) { return halves(q) + static_cast<std::size_t>(me.rank()) * now.count; };
            const auto target = [&](int) { return out.data() + now.first; };
            reduce_seen<Op, T>(me, source, 1, target, clipped(now, out.size()), 0);
          });
      break;
    default: {
      const auto source = [&](int q) { return me.template input_of<T>(q) + begin; };
      reduce_seen<Op, T>(
          me, source, 1, [&](int) { return out.data(); }, out.size(), total * sizeof(T), chosen.by);
      break;
    }
  }
}

template <reducible T, reduction_tag Op, class Context>
void reduce_scatter_v(Context me, std::span<T> inout, std::span<const std::size_t> counts, Op, const where& at) {
  check_division(inout, counts, me.size(), "reduce_scatter_v", "reduce_scatter_v: the buffer", at);
  const fingerprint print{
      operation::reduce_scatter_v, Op::code, element_code_of<T>(), -1, inout.size(), shape_of(counts)};
  me.endpoint->enter_rendezvous(call_buffers_of(print, inout, inout, counts), me.limit, at);
  expect_same_counts(me);
  const auto first = [&](int q) { return offset_of(counts, q); };
  const auto count = [&](int q) { return counts[static_cast<std::size_t>(q)]; };
  reduce_parts<Op, T>(me, inout, inout.subspan(first(me.rank()), count(me.rank())), first, count);
  me.endpoint->exit_rendezvous();
}

template <reducible T, reduction_tag Op, class Context>
void reduce_scatter(Context me, std::span<const T> in, std::span<T> out, Op, const where& at) {
  const auto first = [&](int q) { return out.size() * static_cast<std::size_t>(q); };
  check_length(in.size(), all_parts(out.size(), me.size()), "reduce_scatter: the input", at);
  check_overlap(out, in, in.data() + first(me.rank()), "reduce_scatter", at);
  const fingerprint print{operation::reduce_scatter, Op::code, element_code_of<T>(), -1, out.size(), 0};
  if (const algorithm how = me.endpoint->eager_algorithm(in.size_bytes(), sizeof(T), eager_traffic::all_in_parts);
      how != algorithm::automatic) {
    me.endpoint->eager_round(how, print, in.data(), in.size_bytes(), me.limit, at);
    return reduce_brought<Op, T>(me, me.endpoint->payloads(), first(me.rank()), out);
  }
  me.endpoint->enter_rendezvous(call_buffers_of(print, in, out), me.limit, at);
  reduce_parts<Op, T>(me, in, out, first, [&](int) { return out.size(); });
  me.endpoint->exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
