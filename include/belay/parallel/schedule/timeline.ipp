// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The time of a table whose edges hold a few tensors.
#pragma once

#include <string>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/parallel/schedule/timeline.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

BELAY_DECL ticks time_with_depth(const dynamic_table& table, const table_costs& costs, std::size_t depth) {
  const std::size_t ranks = table.ranks(), stages = table.stages(), micro_batches = table.micro_batches();
  constexpr ticks never = -1;
  // The tensors that a stage gives: activations, or gradients. When each is there, and in the order of its edge when it
  // was used.
  struct edge {
    std::vector<ticks> there;
    std::vector<ticks> used;
    std::size_t sent = 0;
  };
  std::array<std::vector<edge>, 2> edges;
  for (auto& each : edges) each.assign(stages, {std::vector<ticks>(micro_batches, never), {}, 0});
  struct rank_state {
    std::size_t at = 0;
    ticks clock = 0;
    edge* full = nullptr;  // its last tensor waits for room
  };
  std::vector<rank_state> states(ranks);
  const auto leave = [&](rank_state& of) {  // whether the edge has room
    if (of.full == nullptr) return true;
    const std::size_t needed = of.full->sent - depth;  // tensors that were used
    if (of.full->used.size() < needed) return false;
    of.clock = greater_of(of.clock, of.full->used[needed - 1]);
    of.full = nullptr;
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rank_state& own = states[rank];
      const std::span<const action> list = table.actions(rank);
      for (; leave(own) && own.at < list.size(); ++own.at, moved = true) {
        const action& now = list[own.at];
        if (now.is_exchange()) continue;
        const std::size_t stage = table.stage(rank, now.chunk);
        const bool forward = now.kind == action_kind::forward, weight = now.kind == action_kind::weight_gradient;
        const std::size_t source = forward ? stage - 1 : stage + 1, what = forward ? 0 : 1;
        if (!weight && source < stages) {
          edge& from = edges[what][source];
          const ticks there = from.there[now.micro_batch];
          if (there == never) break;
          const bool remote = table.rank_of(source) != rank;
          own.clock = greater_of(own.clock, there + (remote ? costs.message() : 0));
          if (remote) from.used.push_back(own.clock);
        }
        own.clock += costs.stage(stage).of(now.kind);
        if (weight) continue;
        edge& to = edges[what][stage];
        to.there[now.micro_batch] = own.clock;
        const std::size_t user = forward ? stage + 1 : stage - 1;
        if (user < stages && table.rank_of(user) != rank && ++to.sent > depth) own.full = &to;
      }
    }
  }
  ticks total = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (states[rank].at < table.actions(rank).size()) return never;
    total = greater_of(total, states[rank].clock);
  }
  return total;
}

BELAY_DECL edge_depths find_depths(const dynamic_table& table, const table_costs& costs, where at) {
  if (costs.stages.size() != table.stages())
    throw usage_error("the costs of a schedule are those of " + std::to_string(table.stages()) + " stages, not " +
                          std::to_string(costs.stages.size()),
                      at);
  const ticks total = cost_of(table, costs).total;
  edge_depths found;
  if (proof(table).valid()) {
    timeline_player<dynamic_table, ticks> player(table, at);
    if (player.play_costs(costs).total <= total) return found;
  } else {
    found.to_run = 1;
    while (time_with_depth(table, costs, found.to_run) < 0) ++found.to_run;
  }
  found.to_reach_total = greater_of<std::size_t>(found.to_run, 1);
  while (time_with_depth(table, costs, found.to_reach_total) != total) ++found.to_reach_total;
  return found;
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
