// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Finds the exchanges of a schedule from what its ranks compute. A tensor travels at a moment at which both ranks are
// between two computes, the last one before it is needed: neither waits for the other, and it is received when it is
// used. Where there is no such moment it travels as soon as it is there.
//
// Such a table runs although nothing is buffered. Give every exchange the time at which the compute after it begins.
// Two ranks that meet each have this time after the time of the other's exchange before. So of all exchanges that are
// not over the one with the least time has partners whose earlier exchanges are over: no circle of ranks can wait.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/parallel/schedule/compute_lists.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// The gaps of a rank: gap g is the time between its compute g - 1 and its compute g. Within a pair is none.
struct rank_gaps {
  const ticks* begins;
  const ticks* ends;
  std::size_t size;  // computes

  [[nodiscard]] constexpr ticks opens(std::size_t gap) const noexcept { return gap == 0 ? 0 : ends[gap - 1]; }
  [[nodiscard]] constexpr ticks closes(std::size_t gap) const noexcept {
    return gap == size ? largest_value<ticks> : begins[gap];
  }
  // Computes of a pair begin together: the second one before the first one's end.
  [[nodiscard]] constexpr bool is_within_pair(std::size_t gap) const noexcept {
    return gap > 0 && gap < size && begins[gap] < ends[gap - 1];
  }
  [[nodiscard]] constexpr std::size_t from(std::size_t gap) const noexcept {
    return is_within_pair(gap) ? gap + 1 : gap;
  }
  [[nodiscard]] constexpr std::size_t to(std::size_t gap) const noexcept { return is_within_pair(gap) ? gap - 1 : gap; }
};

/// The gaps of sender and receiver in which a tensor travels.
struct meeting_gaps {
  std::size_t sender;
  std::size_t receiver;
};

/// Of a tensor that the sender's compute `made` gives and the receiver's compute `used` takes.
[[nodiscard]] constexpr meeting_gaps find_meeting(const rank_gaps& sender, std::size_t made, const rank_gaps& receiver,
                                                  std::size_t used) {
  const ticks there = sender.ends[made], needed = receiver.begins[used];
  const std::size_t first = sender.from(made + 1), last = receiver.to(used);
  std::size_t sends = first, receives = last;
  while (sends < sender.size && sender.ends[sends] <= needed) ++sends;
  while (true) {
    if (sender.opens(sends) > receiver.closes(receives)) {
      if (sends == first) break;
      sends = sender.to(sends - 1);
    } else if (receiver.opens(receives) > sender.closes(sends)) {
      if (receives == 0) break;
      receives = receiver.to(receives - 1);
      if (receiver.closes(receives) < there) break;
    } else {
      return {sends, receives};
    }
  }
  receives = last;
  while (receives > 0 && receiver.closes(receives - 1) >= there) --receives;
  return {first, receives};
}

/// An exchange whose sends come before its receives.
[[nodiscard]] constexpr action sends_first(const action& exchange) {
  action ordered = exchange;
  std::size_t at = 0;
  for (const transfer_direction direction : {transfer_direction::send, transfer_direction::receive}) {
    for (std::size_t i = 0; i < exchange.transfer_count; ++i)
      if (exchange.group[i].direction == direction) ordered.group[at++] = exchange.group[i];
  }
  return ordered;
}

/// Calls `out(planned_compute)` and `out(action)` for computes and exchanges of rank 0 in order, then those of rank 1,
/// and so on; and `out.next_rank()` before each rank. Throws usage_error where no exchanges would make the lists run.
template <class Out>
constexpr void write_with_exchanges(const compute_lists& lists, Out& out) {
  eager_times times(lists);
  if (!run_eagerly(lists, equal_costs{}, times))
    throw usage_error("the ranks of this schedule compute in orders that wait for each other", {});
  const std::size_t ranks = lists.ranks(), stages = lists.stages(), micro_batches = lists.micro_batches();
  const scratch_array<action> before(lists.room());  // of every compute
  const scratch_array<action> after(ranks);          // the last ones
  const auto gaps_of = [&](std::size_t rank) {
    const std::size_t first = lists.first(rank);
    return rank_gaps{times.begin.data() + first, times.end.data() + first, lists.size(rank)};
  };
  const auto exchange_at = [&](std::size_t rank, std::size_t gap) -> action& {
    action& found = gap == lists.size(rank) ? after[rank] : before[lists.first(rank) + gap];
    found.kind = action_kind::exchange;
    return found;
  };
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const rank_gaps own = gaps_of(rank);
    const planned_compute* const list = lists.of(rank);
    for (std::size_t i = 0; i < own.size; ++i) {
      const planned_compute& now = list[i];
      if (now.kind == action_kind::weight_gradient) continue;
      const bool forward = now.kind == action_kind::forward;
      const std::size_t stage = lists.stage(rank, now.chunk);
      const std::size_t source = forward ? stage - 1 : stage + 1;
      if (source >= stages) continue;
      const std::size_t from = lists.rank_of(source);
      if (from == rank) continue;
      const std::size_t cell = source * micro_batches + now.micro_batch;
      const std::size_t made = (forward ? times.forward : times.input)[cell] - 1 - lists.first(from);
      const meeting_gaps met = find_meeting(gaps_of(from), made, own, i);
      const payload what = forward ? payload::activation : payload::gradient;
      exchange_at(from, met.sender).send(what, now.micro_batch, rank, lists.chunk_of(source));
      exchange_at(rank, met.receiver).receive(what, now.micro_batch, from, now.chunk);
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    out.next_rank();
    const planned_compute* const list = lists.of(rank);
    const action* const exchanges = before.data() + lists.first(rank);
    for (std::size_t i = 0; i < lists.size(rank); ++i) {
      if (exchanges[i].transfer_count > 0) out(sends_first(exchanges[i]));
      out(list[i]);
    }
    if (after[rank].transfer_count > 0) out(sends_first(after[rank]));
  }
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
