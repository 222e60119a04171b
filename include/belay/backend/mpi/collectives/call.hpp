// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives of a group over MPI, on bytes: MPI moves them, in point-to-point messages, and what is reduced is
// reduced here, each rank a slice.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/backend/mpi/p2p/exchange.hpp"
#include "belay/backend/mpi/progress/chunked_transfer.hpp"
#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/lane.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/reduce_simd.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/copy.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Elements of a rank's slice: each rank reduces one, in rounds that bound the temporary memory, in rank order and by
/// the same code as the other backends, so that all agree bit for bit.
struct element_range {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// A reduction works on so many bytes at a time, which bounds its temporary memory.
inline constexpr std::size_t reduction_block = 4 << 20;

/// Sends range q of the call's input (`range(q)`: first and count) to each rank q and reduces all ranks' data of this
/// rank's range into `out`, which may be that range.
template <class Range>
void reduce_ranges(collective_context& me, const op_call& call, Range range, std::byte* out) {
  const std::size_t each = call.element_bytes();
  const auto [first, count] = range(me.rank());
  const std::byte* const own = call.in + first * each;
  const std::size_t bytes = count * each;
  std::vector<std::byte> theirs(bytes * static_cast<std::size_t>(me.size() - 1));
  const auto place = [&](int q) { return theirs.data() + static_cast<std::size_t>(q < me.rank() ? q : q - 1) * bytes; };
  me.move([&](int q, transfer& with) {
    const element_range part = range(q);
    with.send(call.in + part.first * each, part.count * each);
    with.receive(place(q), bytes);
  });
  std::vector<const std::byte*> sources(static_cast<std::size_t>(me.size()));
  for (int q = 0; q < me.size(); ++q) sources[static_cast<std::size_t>(q)] = q == me.rank() ? own : place(q);
  call.arithmetic->arrays(sources, std::span(&out, 1), count, memory_access::automatic, 0);
}

/// Cuts `counts` ranges, one per rank, into rounds of at most `room` elements each: `round(range_of)` is called for
/// each round with the ranges of all ranks in it.
template <class Counts, class Round>
void in_rounds(int ranks, std::size_t room, Counts counts, Round round) {
  std::size_t longest = 0;
  for (int q = 0; q < ranks; ++q) longest = greater_of(longest, counts(q).count);
  for (std::size_t done = 0; done < longest; done += room) {
    round([&](int q) {
      const element_range whole = counts(q);
      const std::size_t skipped = lesser_of(done, whole.count);
      return element_range{whole.first + skipped, lesser_of(room, whole.count - skipped)};
    });
  }
}

[[nodiscard]] inline std::size_t round_length(std::size_t element_bytes, int ranks) noexcept {
  return greater_of<std::size_t>(1024, reduction_block / element_bytes / static_cast<std::size_t>(ranks));
}

/// Rank q reduces slice q of a buffer of `length` elements.
[[nodiscard]] inline element_range slice_of(std::size_t length, int ranks, int which) noexcept {
  const std::size_t slice = (length + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
  const std::size_t first = lesser_of(length, slice * static_cast<std::size_t>(which));
  return {first, lesser_of(slice, length - first)};
}

// A buffer cut into a part for each rank, in bytes: of equal length, or of so many elements as `counts` says.
struct buffer_parts {
  std::size_t each;
  std::span<const std::size_t> counts = {};

  [[nodiscard]] std::size_t first(int q) const noexcept {
    return counts.empty() ? static_cast<std::size_t>(q) * each : offset_of(counts, q) * each;
  }
  [[nodiscard]] std::size_t bytes(int q) const noexcept {
    return counts.empty() ? each : counts[static_cast<std::size_t>(q)] * each;
  }
};

// Each rank's part of `in` goes to that rank, and what they send becomes their parts of `out`.
inline void exchange_parts(collective_context& me, const op_call& call, const buffer_parts& sent,
                           const buffer_parts& received) {
  const int own = me.rank();
  copy_elements(call.out + received.first(own), call.in + sent.first(own), sent.bytes(own));
  me.move([&](int q, transfer& with) {
    with.send(call.in + sent.first(q), sent.bytes(q));
    with.receive(call.out + received.first(q), received.bytes(q));
  });
}
// All ranks get this one's `bytes` at `mine`, and theirs become their parts of `out`.
inline void tell_all(collective_context& me, const std::byte* mine, std::size_t bytes, std::byte* out,
                     const buffer_parts& parts) {
  copy_elements(out + parts.first(me.rank()), mine, bytes);
  me.move([&](int q, transfer& with) {
    with.send(mine, bytes);
    with.receive(out + parts.first(q), parts.bytes(q));
  });
}
inline void run_broadcast(collective_context& me, const op_call& call) {
  me.move([&](int q, transfer& with) {
    if (me.rank() == call.root) with.send(call.in, call.in_bytes());
    if (q == call.root) with.receive(call.out, call.out_bytes());
  });
}
inline void run_gather(collective_context& me, const op_call& call) {
  const bool is_root = me.rank() == call.root;
  const buffer_parts parts{call.in_bytes()};
  if (is_root) copy_elements(call.out + parts.first(me.rank()), call.in, call.in_bytes());
  me.move([&](int q, transfer& with) {
    if (q == call.root) with.send(call.in, call.in_bytes());
    if (is_root) with.receive(call.out + parts.first(q), parts.each);
  });
}
inline void run_scatter(collective_context& me, const op_call& call) {
  const bool is_root = me.rank() == call.root;
  const buffer_parts parts{call.out_bytes()};
  if (is_root) copy_elements(call.out, call.in + parts.first(me.rank()), parts.each);
  me.move([&](int q, transfer& with) {
    if (is_root) with.send(call.in + parts.first(q), parts.each);
    if (q == call.root) with.receive(call.out, parts.each);
  });
}

// Each rank reduces a slice and sends it to all, or to the root.
inline void run_all_reduce(collective_context& me, const op_call& call) {
  if (me.size() == 1) return copy_elements(call.out, call.in, call.in_bytes());
  const std::size_t each = call.element_bytes();
  const auto slices = [&](int q) { return slice_of(call.in_count, me.size(), q); };
  in_rounds(me.size(), round_length(each, me.size()), slices, [&](auto range) {
    const element_range mine = range(me.rank());
    std::byte* const result = call.out + mine.first * each;
    reduce_ranges(me, call, range, result);
    me.move([&](int q, transfer& with) {
      with.send(result, mine.count * each);
      with.receive(call.out + range(q).first * each, range(q).count * each);
    });
  });
}
inline void run_reduce(collective_context& me, const op_call& call) {
  if (me.size() == 1) return copy_elements(call.out, call.in, call.in_bytes());
  const bool is_root = me.rank() == call.root;
  const std::size_t each = call.element_bytes();
  const auto slices = [&](int q) { return slice_of(call.in_count, me.size(), q); };
  in_rounds(me.size(), round_length(each, me.size()), slices, [&](auto range) {
    const element_range mine = range(me.rank());
    std::vector<std::byte> total(is_root ? 0 : mine.count * each);
    std::byte* const result = is_root ? call.out + mine.first * each : total.data();
    reduce_ranges(me, call, range, result);
    me.move([&](int q, transfer& with) {
      if (q == call.root) with.send(result, mine.count * each);
      if (is_root) with.receive(call.out + range(q).first * each, range(q).count * each);
    });
  });
}
inline void run_reduce_scatter(collective_context& me, const op_call& call) {
  const std::size_t own = call.out_count * static_cast<std::size_t>(me.rank());
  const auto ranges = [&](int q) {
    return element_range{call.out_count * static_cast<std::size_t>(q), call.out_count};
  };
  in_rounds(me.size(), round_length(call.element_bytes(), me.size()), ranges, [&](auto range) {
    reduce_ranges(me, call, range, call.out + (range(me.rank()).first - own) * call.element_bytes());
  });
}
inline void run_reduce_scatter_v(collective_context& me, const op_call& call) {
  if (me.size() == 1) return;
  const auto ranges = [&](int q) {
    return element_range{offset_of(call.parts(), q), call.parts()[static_cast<std::size_t>(q)]};
  };
  in_rounds(me.size(), round_length(call.element_bytes(), me.size()), ranges, [&](auto range) {
    reduce_ranges(me, call, range, call.out + range(me.rank()).first * call.element_bytes());
  });
}

// The fingerprint that ranks compare before anything moves.
[[nodiscard]] inline fingerprint print_of(const op_call& call) noexcept {
  switch (call.what()) {
    case operation::reduce_scatter:
    case operation::scatter: return call.print(call.out_count);
    case operation::reduce_scatter_v:
    case operation::all_gather_v: return call.print(call.in_count, shape_of(call.parts()));
    case operation::all_to_all_v: return call.print(0);
    default: return call.print(call.in_count);
  }
}

/// Runs a collective that was checked, all but an exchange. Throws comm_error.
inline void run_collective(collective_context me, const op_call& call) {
  me.enter(print_of(call), call.parts(), call.received_parts(), call.at);
  const buffer_parts parts{call.element_bytes(), call.parts()};
  switch (call.what()) {
    case operation::all_reduce: run_all_reduce(me, call); break;
    case operation::reduce: run_reduce(me, call); break;
    case operation::reduce_scatter: run_reduce_scatter(me, call); break;
    case operation::reduce_scatter_v:
      expect_same_counts(me);
      run_reduce_scatter_v(me, call);
      break;
    case operation::all_gather: tell_all(me, call.in, call.in_bytes(), call.out, {call.in_bytes()}); break;
    case operation::all_gather_v:
      expect_same_counts(me);
      tell_all(me, call.in + parts.first(me.rank()), parts.bytes(me.rank()), call.out, parts);
      break;
    case operation::all_to_all: {
      const buffer_parts equal{call.in_bytes() / static_cast<std::size_t>(me.size())};
      exchange_parts(me, call, equal, equal);
      break;
    }
    case operation::all_to_all_v:
      expect_equal_pairs(me);
      exchange_parts(me, call, parts, {call.element_bytes(), call.received_parts()});
      break;
    case operation::broadcast: run_broadcast(me, call); break;
    case operation::gather: run_gather(me, call); break;
    case operation::scatter: run_scatter(me, call); break;
    case operation::none:
    case operation::barrier:
    case operation::exchange:
    case operation::make_symmetric: break;
  }
  me.finish();
}

/// The calls that a group runs: `run_collective` of this file, and the exchange.
struct collectives {
  using world_type = mpi_progress;
  using group_state = mpi::group_state;
  using duration = clock::duration;

  static void run(group_state& state, lane which, duration limit, const op_call& call) {
    if (call.what() == operation::exchange) return exchange_run(state, which, call.exchanged(), limit, call.at).run();
    run_collective(collective_context(state, which, limit), call);
  }
  static void tell_first_start(group_state& state, operation what, const where& at) {
    collective_context(state, lane::caller, {}).tell_first_start(what, at);
  }
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
