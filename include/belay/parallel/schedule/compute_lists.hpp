// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The computes of each rank, in order, without the tensors that travel in between, and when they would run if no
// message ever waited for its receiver. A rule writes such lists; the table's exchanges are found from the times
// (schedule/exchanges.hpp), and a published bubble is the idle time here.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// Time in whole units: those of a table of unit costs, or nanoseconds.
using ticks = std::int64_t;

/// The time of one micro-batch in one stage: forward, input gradient, weight gradient. A whole backward takes both, a
/// recompute as long as a forward. And that of actions beside them: copies of what a micro-batch leaves, each way, and
/// collectives of the stage.
struct stage_costs {
  ticks forward = 1;
  ticks input_gradient = 1;
  ticks weight_gradient = 1;
  ticks offload = 0;
  ticks gather = 0;
  ticks reduce = 0;

  /// The time of an action.
  [[nodiscard]] constexpr ticks of(action_kind kind) const noexcept {
    return kind == action_kind::forward           ? forward
           : kind == action_kind::input_gradient  ? input_gradient
           : kind == action_kind::weight_gradient ? weight_gradient
           : kind == action_kind::backward        ? input_gradient + weight_gradient
                                                  : of_beside(kind);
  }

 private:
  [[nodiscard]] constexpr ticks of_beside(action_kind kind) const noexcept {
    switch (kind) {
      case action_kind::recompute: return forward;
      case action_kind::offload:
      case action_kind::reload: return offload;
      case action_kind::gather: return gather;
      case action_kind::reduce: return reduce;
      default: return 0;
    }
  }
};

/// Costs of a schedule: of each stage, and of a tensor between ranks.
template <class Costs>
concept schedule_costs = requires(const Costs& costs, std::size_t stage) {
  { costs.stage(stage) } -> std::convertible_to<const stage_costs&>;
  { costs.message() } -> std::convertible_to<ticks>;
};

/// Costs that are equal in all stages.
struct equal_costs {
  stage_costs each{};
  ticks between_ranks = 0;
  ticks saved_by_pair = 0;

  [[nodiscard]] constexpr const stage_costs& stage(std::size_t) const noexcept { return each; }
  [[nodiscard]] constexpr ticks message() const noexcept { return between_ranks; }
  [[nodiscard]] constexpr ticks pair_saves() const noexcept { return saved_by_pair; }
};

/// How much less a forward beside a backward takes than one after the other; 0 where the costs do not say.
template <schedule_costs Costs>
[[nodiscard]] constexpr ticks saved_by_pair(const Costs& costs) noexcept {
  if constexpr (requires { costs.pair_saves(); }) return costs.pair_saves();
  return 0;
}

/// A compute of a rank's list: less to carry than an action, which may have transfers.
struct planned_compute {
  action_kind kind = action_kind::forward;
  bool paired = false;
  std::uint16_t chunk = 0;
  std::uint32_t micro_batch = 0;
};
[[nodiscard]] constexpr planned_compute plan_compute(action_kind kind, std::size_t micro_batch, std::size_t chunk = 0) {
  return {kind, false, static_cast<std::uint16_t>(chunk), static_cast<std::uint32_t>(micro_batch)};
}
/// A forward that runs beside the backward after it; see `action::beside_next`.
[[nodiscard]] constexpr planned_compute plan_forward_beside_next(std::size_t micro_batch, std::size_t chunk = 0) {
  return {action_kind::forward, true, static_cast<std::uint16_t>(chunk), static_cast<std::uint32_t>(micro_batch)};
}
[[nodiscard]] constexpr action to_action(const planned_compute& of) {
  action made = action::compute(of.kind, of.micro_batch, of.chunk);
  made.paired = of.paired;
  return made;
}

[[nodiscard]] constexpr planned_compute to_compute(const action& of) {
  return {of.kind, of.paired, of.chunk, of.micro_batch};
}

/// Elements with the value T{} that live while a table is made, also by a compiler: in one step of it, where those of
/// a vector take many each.
template <class T>
class scratch_array {
 public:
  explicit constexpr scratch_array(std::size_t size) : elements_(new T[size]{}), size_(size) {}
  constexpr scratch_array(scratch_array&& from) noexcept
      : elements_(std::exchange(from.elements_, nullptr)), size_(std::exchange(from.size_, 0)) {}
  scratch_array& operator=(scratch_array&&) = delete;
  constexpr ~scratch_array() { delete[] elements_; }

  [[nodiscard]] constexpr T* data() const noexcept { return elements_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr T& operator[](std::size_t at) const noexcept { return elements_[at]; }

 private:
  T* elements_;
  std::size_t size_;
};

/// The computes of every rank in order: room for all forwards, and all backwards in two halves.
class compute_lists {
 public:
  /// Of stages that lie where `stage_of(rank, chunk, ranks)` says, which gives each stage to one chunk.
  template <class StageOf>
  constexpr compute_lists(std::size_t ranks, std::size_t micro_batches, std::size_t chunks, const StageOf& stage_of)
      : ranks_(ranks),
        chunks_(chunks),
        micro_batches_(micro_batches),
        capacity_(3 * micro_batches * chunks),
        computes_(ranks * capacity_),
        counts_(ranks),
        stage_of_(ranks * chunks),
        holder_of_(ranks * chunks) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
        const std::size_t holder = rank * chunks_ + chunk, stage = stage_of(rank, chunk, ranks);
        stage_of_[holder] = static_cast<std::uint32_t>(stage);
        holder_of_[stage] = static_cast<std::uint32_t>(holder);
      }
    }
  }

  /// The computes of a table, without its exchanges.
  template <any_table Table>
  explicit constexpr compute_lists(const Table& table)
      : compute_lists(table.ranks(), table.micro_batches(), table.chunks(),
                      [&](std::size_t rank, std::size_t chunk, std::size_t) { return table.stage(rank, chunk); }) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      for (const action& next : table.actions(rank))
        if (is_compute(next.kind)) add(rank, to_compute(next));
    }
  }

  [[nodiscard]] constexpr std::size_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] constexpr std::size_t chunks() const noexcept { return chunks_; }
  [[nodiscard]] constexpr std::size_t stages() const noexcept { return ranks_ * chunks_; }
  [[nodiscard]] constexpr std::size_t micro_batches() const noexcept { return micro_batches_; }
  [[nodiscard]] constexpr std::size_t stage(std::size_t rank, std::size_t chunk) const noexcept {
    return stages_of(rank)[chunk];
  }
  /// The stages of a rank by chunk.
  [[nodiscard]] constexpr const std::uint32_t* stages_of(std::size_t rank) const noexcept {
    return stage_of_.data() + rank * chunks_;
  }
  [[nodiscard]] constexpr std::size_t rank_of(std::size_t stage) const noexcept { return holder_of_[stage] / chunks_; }
  [[nodiscard]] constexpr std::size_t chunk_of(std::size_t stage) const noexcept { return holder_of_[stage] % chunks_; }

  [[nodiscard]] constexpr std::size_t size(std::size_t rank) const noexcept { return counts_[rank]; }
  [[nodiscard]] constexpr const planned_compute* of(std::size_t rank) const noexcept {
    return computes_.data() + rank * capacity_;
  }
  [[nodiscard]] constexpr std::span<const planned_compute> actions(std::size_t rank) const noexcept {
    return {of(rank), size(rank)};
  }
  /// Index of a rank's first compute among those of all ranks, and the end of these.
  [[nodiscard]] constexpr std::size_t first(std::size_t rank) const noexcept { return rank * capacity_; }
  [[nodiscard]] constexpr std::size_t room() const noexcept { return ranks_ * capacity_; }

  /// Throws usage_error where the rank has more than all forwards and all halves of backwards, or nothing of the kind,
  /// or for an action beside computes.
  constexpr void add(std::size_t rank, const planned_compute& next) {
    std::uint32_t& count = counts_.data()[rank];
    if (count == capacity_) throw usage_error("a schedule repeats a compute", {});
    if (next.kind >= action_kind::exchange)
      throw usage_error("a rule that writes no exchanges writes forwards and backwards only", {});
    if (next.micro_batch >= micro_batches_ || next.chunk >= chunks_)
      throw usage_error("a schedule names a micro-batch or a chunk that it does not have", {});
    computes_.data()[rank * capacity_ + count++] = next;
  }
  constexpr void add(std::size_t rank, action_kind kind, std::size_t micro_batch, std::size_t chunk) {
    add(rank, plan_compute(kind, micro_batch, chunk));
  }

 private:
  std::size_t ranks_;
  std::size_t chunks_;
  std::size_t micro_batches_;
  std::size_t capacity_;
  scratch_array<planned_compute> computes_;
  scratch_array<std::uint32_t> counts_;
  scratch_array<std::uint32_t> stage_of_;   // of rank times chunks, and chunk
  scratch_array<std::uint32_t> holder_of_;  // of stage
};

/// When the computes of a schedule run, if each begins as soon as its rank and its input are there.
struct eager_times {
  explicit constexpr eager_times(const compute_lists& lists)
      : begin(lists.room()),
        end(lists.room()),
        forward(lists.stages() * lists.micro_batches()),
        input(lists.stages() * lists.micro_batches()),
        ran(lists.ranks()) {}

  scratch_array<ticks> begin;            // of each compute, by its index among all
  scratch_array<ticks> end;              // and when it ends
  scratch_array<std::uint32_t> forward;  // of stage and micro-batch: 1 + index of its forward
  scratch_array<std::uint32_t> input;    // and of its input gradient
  scratch_array<std::uint32_t> ran;      // of each rank: its computes that run
  std::size_t stopped = 0;               // the first rank that does not run all
};

/// Fills `times`; both computes of a pair have its begin and its end. False where the lists can not be run in this
/// order, whatever the exchanges: some wait for each other, or lack what others need.
template <schedule_costs Costs>
constexpr bool run_eagerly(const compute_lists& lists, const Costs& costs, eager_times& times) {
  const std::size_t ranks = lists.ranks(), stages = lists.stages(), micro_batches = lists.micro_batches();
  const scratch_array<std::uint32_t> ready(ranks);
  const scratch_array<std::size_t> waits_for(ranks);  // 1 + twice the cell whose tensor a rank waits for, and which
  // Of every stage: the rank that holds it, and what its computes take.
  const scratch_array<std::uint32_t> ranks_of_stages(stages);
  const scratch_array<stage_costs> costs_of_stages(stages);
  std::uint32_t* const rank_of = ranks_of_stages.data();
  stage_costs* const cost_of = costs_of_stages.data();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    rank_of[stage] = static_cast<std::uint32_t>(lists.rank_of(stage));
    cost_of[stage] = costs.stage(stage);
  }
  const ticks message = costs.message();
  ticks* const begins = times.begin.data();
  ticks* const ends = times.end.data();
  std::uint32_t* const forwards = times.forward.data();
  std::uint32_t* const inputs = times.input.data();
  std::uint32_t* const ran = times.ran.data();
  std::uint32_t* const waiting = ready.data();
  std::size_t* const awaited = waits_for.data();
  const ticks saved = saved_by_pair(costs);
  std::size_t runnable = 0;
  // Wakes the rank that waits for what a stage made.
  const auto hand_on = [&](bool forward, std::size_t stage, std::size_t cell) {
    const std::size_t to = forward ? stage + 1 : stage - 1;
    if (to >= stages) return;
    const std::size_t taker = rank_of[to];
    if (awaited[taker] != 1 + 2 * cell + (forward ? 0 : 1)) return;
    awaited[taker] = 0;
    waiting[runnable++] = static_cast<std::uint32_t>(taker);
  };
  for (std::size_t rank = ranks; rank-- > 0;) waiting[runnable++] = static_cast<std::uint32_t>(rank);
  std::size_t ended = 0;
  const auto stop = [&](std::size_t rank, std::size_t at) {
    ran[rank] = static_cast<std::uint32_t>(at);
    times.stopped = rank;
    return false;
  };
  while (runnable > 0) {
    const std::size_t rank = waiting[--runnable];
    const planned_compute* const list = lists.of(rank);
    const std::uint32_t* const held = lists.stages_of(rank);
    const std::size_t first = lists.first(rank), size = lists.size(rank);
    std::size_t at = ran[rank];
    ticks clock = at == 0 ? 0 : ends[first + at - 1];
    for (; at < size; ++at) {
      const planned_compute& now = list[at];
      const std::size_t stage = held[now.chunk];
      const std::size_t cell = stage * micro_batches + now.micro_batch;
      const bool forward = now.kind == action_kind::forward;
      const bool weight = now.kind == action_kind::weight_gradient;
      std::uint32_t source = 0;  // 1 + index of the compute that gives its input; from another stage: `from`
      std::size_t from = stage;
      if (forward) {
        if (stage > 0) from = stage - 1, source = forwards[cell - micro_batches];
      } else if (weight) {
        source = inputs[cell];
        if (source == 0) return stop(rank, at);
      } else {
        if (forwards[cell] == 0) return stop(rank, at);
        if (stage + 1 < stages) from = stage + 1, source = inputs[cell + micro_batches];
      }
      if (from != stage && source == 0) {
        awaited[rank] = 1 + 2 * (from * micro_batches + now.micro_batch) + (forward ? 0 : 1);
        break;
      }
      if (source != 0) {
        const ticks there = ends[source - 1] + (rank_of[from] != rank ? message : 0);
        if (there > clock) clock = there;
      }
      if (now.paired) {
        if (!forward || at + 1 == size) return stop(rank, at);
        const planned_compute& beside = list[at + 1];
        const std::size_t other = held[beside.chunk], other_cell = other * micro_batches + beside.micro_batch;
        if (beside.kind != action_kind::backward && beside.kind != action_kind::input_gradient) return stop(rank, at);
        if (forwards[other_cell] == 0) return stop(rank, at);
        if (other + 1 < stages) {
          const std::uint32_t given = inputs[other_cell + micro_batches];
          if (given == 0) {
            awaited[rank] = 2 + 2 * (other_cell + micro_batches);
            break;
          }
          const ticks there = ends[given - 1] + (rank_of[other + 1] != rank ? message : 0);
          if (there > clock) clock = there;
        }
        begins[first + at] = begins[first + at + 1] = clock;
        clock += cost_of[stage].forward + cost_of[other].of(beside.kind) - saved;
        ends[first + at] = ends[first + at + 1] = clock;
        forwards[cell] = static_cast<std::uint32_t>(first + at + 1);
        inputs[other_cell] = static_cast<std::uint32_t>(first + at + 2);
        hand_on(true, stage, cell);
        hand_on(false, other, other_cell);
        ++at;
        continue;
      }
      begins[first + at] = clock;
      clock += cost_of[stage].of(now.kind);
      ends[first + at] = clock;
      if (weight) continue;
      (forward ? forwards : inputs)[cell] = static_cast<std::uint32_t>(first + at + 1);
      hand_on(forward, stage, cell);
    }
    ran[rank] = static_cast<std::uint32_t>(at);
    ended += at == size;
  }
  while (times.stopped < ranks && ran[times.stopped] == lists.size(times.stopped)) ++times.stopped;
  return ended == ranks;
}

/// Throws usage_error that names the compute before which a rank waits for ever.
[[noreturn]] inline void refuse_circle(const compute_lists& lists, const eager_times& times, where at = {}) {
  const std::size_t rank = times.stopped;
  const planned_compute& next = lists.of(rank)[times.ran[rank]];
  throw usage_error("the ranks of this schedule compute in orders that wait for each other: rank " +
                        std::to_string(rank) + " waits before the " + name(next.kind) + " of micro-batch " +
                        std::to_string(next.micro_batch) + " in stage " + std::to_string(lists.stage(rank, next.chunk)),
                    at);
}

/// The time and the memory of a schedule in which no message waits for its receiver.
struct eager_cost {
  ticks total = 0;       // when the last rank ends: the optimizer waits for all of them
  ticks longest = 0;     // the longest time from a rank's first compute to its last
  ticks busy = 0;        // of the rank that computes most
  std::size_t peak = 0;  // most chunks that a rank keeps between forward and weight gradient

  /// Time in which that rank waits.
  [[nodiscard]] constexpr ticks bubble() const noexcept { return total - busy; }
};

/// The cost of lists. Throws usage_error where they wait for each other.
template <schedule_costs Costs>
[[nodiscard]] constexpr eager_cost cost_of(const compute_lists& lists, const Costs& costs) {
  eager_times times(lists);
  if (!run_eagerly(lists, costs, times)) refuse_circle(lists, times);
  eager_cost of;
  for (std::size_t rank = 0; rank < lists.ranks(); ++rank) {
    const std::size_t first = lists.first(rank), size = lists.size(rank);
    const planned_compute* const list = lists.of(rank);
    const ticks* const begins = times.begin.data() + first;
    const ticks* const ends = times.end.data() + first;
    ticks busy = 0;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size; ++i) {
      busy += list[i].paired ? 0 : ends[i] - begins[i];
      const action_kind kind = list[i].kind;
      if (kind == action_kind::forward && ++kept > of.peak) of.peak = kept;
      if (kind == action_kind::backward || kind == action_kind::weight_gradient) --kept;
    }
    if (busy > of.busy) of.busy = busy;
    if (size == 0) continue;
    if (ends[size - 1] > of.total) of.total = ends[size - 1];
    if (ends[size - 1] - begins[0] > of.longest) of.longest = ends[size - 1] - begins[0];
  }
  return of;
}
/// The cost of a table, whatever its exchanges.
template <any_table Table, schedule_costs Costs>
[[nodiscard]] constexpr eager_cost cost_of(const Table& table, const Costs& costs) {
  return cost_of(compute_lists(table), costs);
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
