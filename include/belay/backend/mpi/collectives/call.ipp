// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives of a group over MPI, on bytes. A rank in one operation exchanges headers with the others, compares
// all of them, and then moves bytes: every rank gets every other's header, so all come to the same result before
// anything is written. MPI moves the bytes, in point-to-point messages, and what is reduced is reduced here, each rank
// a slice.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/collectives/call.hpp"
#include "belay/backend/mpi/p2p/transfers.hpp"
#include "belay/backend/mpi/progress/control_message.hpp"
#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/reduce_simd.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/copy.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// A rank in one operation of a group, for which it lives. Ranks are those of the group unless said otherwise.
class collective_context {
 public:
  collective_context(group_state& group, lane which, clock::duration limit)
      : group_(&group), lane_(which), limit_(limit) {}

  [[nodiscard]] int rank() const noexcept { return group_->rank; }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  [[nodiscard]] int world_rank(int q) const noexcept { return group_->world_rank(q); }

  /// Returns when all ranks have entered the same operation; otherwise throws `comm_error` before any of them has gone
  /// on.
  void enter(const fingerprint& print, std::span<const std::size_t> send_counts,
             std::span<const std::size_t> receive_counts, where at) {
    mpi_progress& progress = *group_->progress;
    call_ = {print.what, group_->id, group_->operations[index(lane_)]++, print.bytes(), at};
    if (progress.aborted()) progress.raise(call_);
    progress.enter(lane_, call_);
    headers_.resize(static_cast<std::size_t>(size()));
    control_message& mine = headers_[static_cast<std::size_t>(rank())];
    mine.kind = control_message_kind::collective_header;
    mine.group = group_->key;
    mine.order = group_->order;
    mine.number = call_.number;
    mine.print = print;
    mine.send_counts.assign(send_counts.begin(), send_counts.end());
    mine.receive_counts.assign(receive_counts.begin(), receive_counts.end());
    mine.text = at.text();
    if (size() > 1) exchange_headers(progress, mine);
    compare();
  }

  /// Posts the header of what was started, as the last one of this lane.
  void tell_first_start(operation what, where at) {
    mpi_progress& progress = *group_->progress;
    call_ = {what, group_->id, group_->operations[index(lane_)]++, 0, at};
    if (progress.aborted()) return;
    control_message mine;
    mine.kind = control_message_kind::collective_header;
    mine.group = group_->key;
    mine.order = group_->order;
    mine.number = call_.number;
    mine.print = fingerprint::first_start(what);
    mine.text = at.text();
    progress.guarded(call_, [&] {
      for (int k = 1; k < size(); ++k) progress.channel(lane_).post(world_rank((rank() + k) % size()), mine);
    });
  }

  /// Moves between this rank and others: `fill(q, transfer)` sets what goes to rank q and what comes from it.
  template <class Fill>
  void move(Fill fill) {
    if (size() == 1) return;
    mpi_progress& progress = *group_->progress;
    chunked_transfer bytes(progress.channel(lane_).comm());
    for (int k = 1; k < size(); ++k) {  // each rank begins with another peer
      const int q = (rank() + k) % size();
      transfer one;
      one.peer = world_rank(q);
      fill(q, one);
      bytes.add(one);
    }
    progress.guarded(call_, [&] { bytes.progress(); });
    progress.await(
        lane_, call_, limit_, [&] { return bytes.progress(); }, [&](auto tell) { bytes.remaining(tell); });
  }

  void finish() noexcept { group_->progress->finish(lane_); }

  // Comparisons of all ranks' calls ask for these (see call_mismatch.hpp).

  [[nodiscard]] std::span<const std::size_t> send_counts_of(int q) const noexcept { return of(q).send_counts; }
  [[nodiscard]] std::span<const std::size_t> receive_counts_of(int q) const noexcept { return of(q).receive_counts; }
  [[nodiscard]] const std::string& site_of(int q) const noexcept { return of(q).text; }
  [[nodiscard]] std::string call_text(int q) const {
    const fingerprint& print = of(q).print;
    return print.shape == 0 ? print.text() : print.text_with(of(q).send_counts);
  }

  /// Stops the world because the calls do not match; every rank of the group sees that and does the same.
  [[noreturn]] void refuse(const mismatch_report& found) {
    group_->progress->abort({comm_fault::mismatch, found.culprits, found.message, found.there});
    group_->progress->raise(call_);
  }

 private:
  [[nodiscard]] const control_message& of(int q) const noexcept { return headers_[static_cast<std::size_t>(q)]; }

  void exchange_headers(mpi_progress& progress, const control_message& mine) {
    control_channel& channel = progress.channel(lane_);
    progress.guarded(call_, [&] {
      for (int k = 1; k < size(); ++k) channel.post(world_rank((rank() + k) % size()), mine);
    });
    const auto missing = [&](auto tell) {
      for (int member : group_->ranks) {
        if (member == progress.number()) continue;
        if (channel.first(group_->key, control_message_kind::collective_header, member) == nullptr) tell(member, true);
      }
    };
    const auto all_here = [&] {
      bool here = true;
      missing([&](int, bool) { here = false; });
      return here;
    };
    progress.await(lane_, call_, limit_, all_here, missing);
    for (int q = 0; q < size(); ++q) {
      if (q == rank()) continue;
      headers_[static_cast<std::size_t>(q)] =
          channel.take(group_->key, control_message_kind::collective_header, world_rank(q));
    }
  }

  void compare() {
    const auto alike = [&](int a, int b) { return of(a).print == of(b).print && of(a).order == of(b).order; };
    expect_alike(*this, alike, [&](int q) {
      return call_text(q) + (of(q).order == group_->order ? "" : " in a group of another order of ranks");
    });
  }

  group_state* group_;
  lane lane_;
  clock::duration limit_;
  call_site call_;
  std::vector<control_message> headers_;
};

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

BELAY_DECL void collectives::run(group_state& state, lane which, duration limit, const op_call& call) {
  if (call.what() == operation::exchange) return exchange_run(state, which, call.exchanged(), limit, call.at).run();
  collective_context me(state, which, limit);
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
BELAY_DECL void collectives::tell_first_start(group_state& state, operation what, const where& at) {
  collective_context(state, lane::caller, {}).tell_first_start(what, at);
}

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
