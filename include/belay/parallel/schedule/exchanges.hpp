// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Finds the exchanges of a schedule from what its ranks compute. A tensor travels as soon as both ranks are between two
// computes and it is there: in the sender's gap after its compute, and in the receiver's first gap that is not over
// when it is made. A rank computes on while it travels, so the sender does not wait for the receiver, and the receiver
// waits where it uses the tensor. All ranks give their exchanges in one order, that in which tensors are made; and of
// those that are made together, that of their stages; what crosses between two ranks is one exchange.
//
// Such a table runs although nothing is buffered, also where ranks wait in each exchange. An exchange of a gap has
// tensors that are made after the compute before it began and before the one after it begins. So of all gaps that are
// not over, that which ends first has partners whose earlier gaps are over; and within it all keep the one order: no
// circle of ranks can wait.
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

/// The gap of the receiver in which a tensor travels that is made at `there` and that its compute `used` takes: the
/// first one that ends no earlier.
[[nodiscard]] constexpr std::size_t find_receiving_gap(const rank_gaps& receiver, ticks there, std::size_t used) {
  std::size_t gap = receiver.to(used);
  while (gap > 0 && receiver.closes(gap - 1) >= there) --gap;
  return gap;
}

/// The order of tensors that travel: when they are made, when both ranks are between two computes, and which stage has
/// made them. All ranks know it.
struct travel_order {
  ticks made = 0;
  ticks met = 0;
  std::size_t lower = 0;  // of the two ranks
  std::size_t upper = 0;
  std::size_t tensor = 0;

  [[nodiscard]] constexpr bool travels_with(const travel_order& other) const noexcept {
    return made == other.made && met == other.met && lower == other.lower && upper == other.upper;
  }
  [[nodiscard]] constexpr bool before(const travel_order& other) const noexcept {
    if (made != other.made) return made < other.made;
    if (met != other.met) return met < other.met;
    return tensor < other.tensor;
  }
};

/// The transfers of the gaps of all ranks, each gap's in the order in which they travel.
class gap_transfers {
 public:
  constexpr gap_transfers(std::size_t gaps, std::size_t transfers)
      : first_(gaps), next_(transfers + 1), moved_(transfers + 1), orders_(transfers + 1) {}

  constexpr void add(std::size_t gap, const transfer& moved, const travel_order& order) {
    const std::uint32_t added = ++size_;
    moved_[added] = moved;
    orders_[added] = order;
    std::uint32_t* link = &first_[gap];
    while (*link != 0 && orders_[*link].before(order)) link = &next_[*link];
    next_[added] = *link;
    *link = added;
  }
  /// Calls `out(action)` for the exchanges of a gap.
  template <class Out>
  constexpr void write(std::size_t gap, Out& out) const {
    for (std::uint32_t at = first_[gap]; at != 0;) {
      action together = action::exchange();
      const travel_order& order = orders_[at];
      for (; at != 0 && together.transfer_count < action::most_transfers && orders_[at].travels_with(order);
           at = next_[at])
        together.group[together.transfer_count++] = moved_[at];
      out(together);
    }
  }

 private:
  scratch_array<std::uint32_t> first_;  // of each gap; 0: none
  scratch_array<std::uint32_t> next_;   // of each transfer, from 1 on
  scratch_array<transfer> moved_;
  scratch_array<travel_order> orders_;
  std::uint32_t size_ = 0;
};

/// Calls `out(planned_compute)` and `out(action)` for computes and exchanges of rank 0 in order, then those of rank 1,
/// and so on; and `out.next_rank()` before each rank. Throws usage_error where no exchanges would make the lists run.
template <class Out>
constexpr void write_with_exchanges(const compute_lists& lists, Out& out) {
  eager_times times(lists);
  if (!run_eagerly(lists, equal_costs{}, times)) refuse_circle(lists, times);
  const std::size_t ranks = lists.ranks(), stages = lists.stages(), micro_batches = lists.micro_batches();
  gap_transfers transfers(lists.room() + ranks, 4 * stages * micro_batches);
  const auto gaps_of = [&](std::size_t rank) {
    const std::size_t first = lists.first(rank);
    return rank_gaps{times.begin.data() + first, times.end.data() + first, lists.size(rank)};
  };
  const auto number_of = [&](std::size_t rank, std::size_t gap) {
    return gap == lists.size(rank) ? lists.room() + rank : lists.first(rank) + gap;
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
      const rank_gaps sender = gaps_of(from);
      const ticks there = sender.ends[made];
      const std::size_t sends = sender.from(made + 1), receives = find_receiving_gap(own, there, i);
      const payload what = forward ? payload::activation : payload::gradient;
      const travel_order order{there, greater_of(there, own.opens(receives)), lesser_of(from, rank),
                               greater_of(from, rank), 2 * cell + (forward ? 0 : 1)};
      action both = action::exchange();
      both.send(what, now.micro_batch, rank, lists.chunk_of(source)).receive(what, now.micro_batch, from, now.chunk);
      transfers.add(number_of(from, sends), both.group[0], order);
      transfers.add(number_of(rank, receives), both.group[1], order);
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    out.next_rank();
    const planned_compute* const list = lists.of(rank);
    for (std::size_t i = 0; i < lists.size(rank); ++i) {
      transfers.write(number_of(rank, i), out);
      out(list[i]);
    }
    transfers.write(number_of(rank, lists.size(rank)), out);
  }
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
