// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Times and bytes of all schedules, and the greedy one.
#pragma once

#include <algorithm>
#include <array>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/parallel/schedule/catalogue.hpp"
#include "belay/parallel/schedule/planner.hpp"
#include "belay/parallel/schedule/rules.hpp"
#include "belay/parallel/schedule/v_patterns.hpp"
#include "belay/parallel/schedule/zero_bubble.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// One way of filling the pipeline: how many forwards for each rank behind come before the first input gradient, in
/// twentieths, and how much shorter than a weight gradient a wait may be to be filled with one, in quarters.
struct greedy_order {
  std::uint32_t twentieths;
  std::uint32_t quarters;
};

/// Plays a pipeline of one chunk a rank, which decides at each moment what to run.
class greedy_player {
 public:
  greedy_player(std::size_t micro_batches, const staged_costs& costs, std::span<const std::uint64_t> budget)
      : micro_batches_(micro_batches), costs_(&costs), budget_(budget), ranks_(costs.time.stages.size()) {}

  /// The computes; false where memory ends them before all have run.
  [[nodiscard]] bool run(const greedy_order& order, compute_lists& lists) {
    const std::size_t last = ranks_.size() - 1;
    for (std::size_t rank = 0; rank <= last; ++rank) {
      ranks_[rank] = {};
      ranks_[rank].bytes = costs_->always_of(rank);
    }
    there_.assign(2, std::vector<std::vector<ticks>>(ranks_.size(), std::vector<ticks>(micro_batches_, never)));
    there_[0][0].assign(micro_batches_, 0);
    for (std::size_t rank = 0; rank <= last; ++rank) events_.push({0, rank});
    while (!events_.empty()) {
      const auto [now, rank] = events_.top();
      events_.pop();
      rank_state& own = ranks_[rank];
      if (own.busy_until > now) continue;
      const std::size_t behind = last - rank;
      const action_kind kind = next_of(rank, now, order, 1 + behind * order.twentieths / 20);
      if (kind == action_kind::exchange) continue;  // it waits
      const stage_costs& time = costs_->time.stages[rank];
      const stage_bytes& bytes = costs_->kept[rank];
      std::size_t& number = kind == action_kind::forward          ? own.forwards
                            : kind == action_kind::input_gradient ? own.inputs
                                                                  : own.weights;
      const std::size_t micro_batch = number++;
      if (kind == action_kind::forward) {
        own.busy_until = now + time.forward;
        own.bytes += bytes.for_input_gradient + bytes.for_both;
        if (behind > 0)
          hand_on(0, rank + 1, micro_batch, own.busy_until);
        else
          there_[1][rank][micro_batch] = own.busy_until;
      } else if (kind == action_kind::input_gradient) {
        own.busy_until = now + time.input_gradient;
        own.bytes += bytes.for_weight_gradient;
        own.bytes -= bytes.for_input_gradient;
        if (rank > 0) hand_on(1, rank - 1, micro_batch, own.busy_until);
      } else {
        own.busy_until = now + time.weight_gradient;
        own.bytes -= bytes.for_weight_gradient + bytes.for_both;
      }
      lists.add(rank, kind, micro_batch, 0);
      events_.push({own.busy_until, rank});
    }
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const rank_state& each) { return each.weights == micro_batches_; });
  }

 private:
  static constexpr ticks never = largest_value<ticks>;
  struct rank_state {
    std::size_t forwards = 0, inputs = 0, weights = 0;
    ticks busy_until = 0;
    std::uint64_t bytes = 0;
  };
  struct rank_event {
    ticks when;
    std::size_t rank;
    bool operator>(const rank_event& other) const { return when != other.when ? when > other.when : rank > other.rank; }
  };

  // An exchange stands for nothing: the rank waits.
  [[nodiscard]] action_kind next_of(std::size_t rank, ticks now, const greedy_order& order, std::size_t warm) const {
    const rank_state& own = ranks_[rank];
    const stage_bytes& bytes = costs_->kept[rank];
    // An input gradient has all parts of its micro-batch at once; a forward leaves room for that.
    const auto has_room = [&](std::uint64_t needed) {
      return own.bytes <= budget_[rank] && needed <= budget_[rank] - own.bytes;
    };
    const bool may_forward =
        own.forwards < micro_batches_ &&
        has_room(bytes.for_input_gradient + bytes.for_weight_gradient + bytes.for_both);
    const bool may_input = own.inputs < own.forwards && has_room(bytes.for_weight_gradient);
    const ticks forward = may_forward ? there_[0][rank][own.forwards] : never;
    const ticks input = may_input ? there_[1][rank][own.inputs] : never;
    if (input <= now) return action_kind::input_gradient;
    if (forward <= now && (own.inputs > 0 || own.forwards < warm)) return action_kind::forward;
    if (own.inputs == own.weights) return action_kind::exchange;
    const ticks next = lesser_of(forward, input);
    const ticks least = costs_->time.stages[rank].weight_gradient * order.quarters / 4;
    return next == never || next - now >= least ? action_kind::weight_gradient : action_kind::exchange;
  }
  void hand_on(std::size_t what, std::size_t to, std::size_t micro_batch, ticks made) {
    const ticks there = made + costs_->time.between_ranks;
    there_[what][to][micro_batch] = there;
    events_.push({there, to});
  }

  std::size_t micro_batches_;
  const staged_costs* costs_;
  std::span<const std::uint64_t> budget_;
  std::vector<rank_state> ranks_;
  std::vector<std::vector<std::vector<ticks>>> there_;  // activations and gradients, by rank and micro-batch
  std::priority_queue<rank_event, std::vector<rank_event>, std::greater<>> events_;
};

BELAY_DECL std::optional<dynamic_table> greedy_table(std::size_t micro_batches, const staged_costs& costs,
                                                     std::span<const std::uint64_t> budget, greedy_goal goal) {
  const std::size_t ranks = costs.time.stages.size();
  std::optional<compute_lists> best;
  ticks shortest = 0;
  greedy_player player(micro_batches, costs, budget);
  for (const std::uint32_t twentieths : {20U, 40U, 41U, 42U, 43U, 44U, 46U, 50U, 54U, 60U}) {
    for (const std::uint32_t quarters : {0U, 1U, 2U, 4U}) {
      compute_lists lists(ranks, micro_batches, 1, stage_in_loop);
      if (!player.run({twentieths, quarters}, lists)) continue;
      const eager_cost cost = cost_of(lists, costs.time);
      const ticks time = goal == greedy_goal::total ? cost.total : cost.longest;
      if (best && time >= shortest) continue;
      shortest = time;
      best.emplace(std::move(lists));
    }
  }
  if (!best) return std::nullopt;
  growing_sink sink;
  write_with_exchanges(*best, sink);
  sink.next_rank();
  return dynamic_table("greedy", ranks, micro_batches, std::move(sink.actions), std::move(sink.offsets));
}

/// A schedule that may be chosen: its time, its bytes, and whether it fits.
struct schedule_candidate {
  std::string name;
  eager_cost cost;
  std::vector<std::uint64_t> bytes;
  fault worst;  // of the rank that exceeds its budget by most
  std::uint64_t excess = 0;

  [[nodiscard]] static schedule_candidate of(std::string name, const compute_lists& lists, const staged_costs& costs,
                                             std::span<const std::uint64_t> budget) {
    schedule_candidate made{std::move(name), cost_of(lists, costs.time), peak_bytes(lists, costs.kept), {}};
    for (std::size_t rank = 0; rank < budget.size(); ++rank) {
      made.bytes[rank] += costs.always_of(rank);
      const std::uint64_t over = made.bytes[rank] > budget[rank] ? made.bytes[rank] - budget[rank] : 0;
      if (over <= made.excess) continue;
      made.excess = over;
      made.worst.kind = fault_kind::memory_exceeded;
      made.worst.rank = rank;
      made.worst.bytes = made.bytes[rank];
      made.worst.budget = budget[rank];
    }
    return made;
  }
};

/// How much less a forward beside a backward has to take for DualPipeV of pairs to be shorter than the other, rounded
/// down: (p - 1) / (2 m - p - 2) of a third of what its largest stage takes.
[[nodiscard]] inline ticks least_saving_of_pairs(std::size_t ranks, std::size_t micro_batches,
                                                 const table_costs& costs) {
  ticks largest = 0;
  for (const stage_costs& each : costs.stages)
    largest = greater_of(largest, each.forward + each.input_gradient + each.weight_gradient);
  return static_cast<ticks>(ranks - 1) * largest / static_cast<ticks>(3 * (2 * micro_batches - ranks - 2));
}

// It keeps least and waits most: the greedy schedule aside, it is taken where no other fits.
inline constexpr std::string_view last_resort = v_min_rule::name;

BELAY_DECL std::string why_not_taken(ticks total, std::string_view taken, ticks taken_total) {
  if (total < taken_total) return "takes " + std::to_string(total) + ", and is taken where no other schedule fits";
  if (total == taken_total) return "takes as long as " + std::string(taken);
  return "takes " + std::to_string(total) + ", and " + std::string(taken) + " " + std::to_string(taken_total);
}

BELAY_DECL schedule_choice choose(std::size_t micro_batches, std::span<const std::uint64_t> budget,
                                  costs_of_placement costs, where at) {
  constexpr std::size_t most_chunks = 4;
  const std::size_t ranks = budget.size();
  std::vector<schedule_candidate> fitting;
  std::optional<schedule_candidate> least;
  std::vector<schedule_choice::refused_schedule> refused;
  const auto leave_out = [&](const std::string& name, std::string why) {
    refused.push_back({name, std::move(why), 0});
  };
  const auto consider = [&](schedule_candidate found) {
    if (!least || found.excess < least->excess) least = found;
    if (found.excess > 0) return leave_out(found.name, explain_memory(found.worst));
    fitting.push_back(std::move(found));
  };
  for (const std::string& name : named_schedule::names(most_chunks)) {
    const named_schedule each = named_schedule::of(name, at);
    const std::optional<staged_costs> of = costs(each.placed());
    if (!of) {
      leave_out(name, "has more stages than the network has layers");
      continue;
    }
    const std::size_t fewest = each.least_micro_batches(ranks);
    if (micro_batches < fewest) {
      leave_out(name, "needs " + std::to_string(fewest) + " micro-batches");
      continue;
    }
    if (name == dualpipe_v_atomic_rule::name) {
      const ticks least_saving = least_saving_of_pairs(ranks, micro_batches, of->time), saved = of->time.pair_saves();
      if (saved <= least_saving) {
        leave_out(name, "saves " + std::to_string(saved) + " a pair, and pays above " + std::to_string(least_saving));
        continue;
      }
    }
    consider(schedule_candidate::of(name, each.lists(ranks, micro_batches, at), *of, budget));
  }
  std::optional<dynamic_table> greedy;
  if (const std::optional<staged_costs> of = costs(placement{})) {
    greedy = greedy_table(micro_batches, *of, budget);
    if (greedy)
      consider(schedule_candidate::of("greedy", compute_lists(*greedy), *of, budget));
    else
      leave_out("greedy", "one micro-batch does not fit");
  }
  if (fitting.empty())
    throw usage_error(
        "no schedule of " + std::to_string(ranks) + " ranks and " + std::to_string(micro_batches) +
            " micro-batches fits: " +
            (least ? least->name + " " + explain_memory(least->worst) : std::string("the network has too few layers")),
        at);
  const bool others = std::any_of(fitting.begin(), fitting.end(), [](const schedule_candidate& each) {
    return each.name != last_resort && each.name != "greedy";
  });
  std::stable_sort(fitting.begin(), fitting.end(), [&](const schedule_candidate& a, const schedule_candidate& b) {
    if (others && (a.name == last_resort) != (b.name == last_resort)) return b.name == last_resort;
    return a.cost.total < b.cost.total;
  });
  const schedule_candidate& best = fitting.front();
  std::vector<schedule_choice::refused_schedule> not_taken;
  for (auto each = fitting.begin() + 1; each != fitting.end(); ++each)
    not_taken.push_back({each->name, why_not_taken(each->cost.total, best.name, best.cost.total), each->cost.total});
  not_taken.insert(not_taken.end(), refused.begin(), refused.end());
  dynamic_table table = best.name == "greedy" ? *greedy : named_table(best.name, ranks, micro_batches, at);
  return {best.name, std::move(table), best.cost, best.bytes, std::move(not_taken), std::move(greedy)};
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
