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
    std::array<edge*, 2> full{};  // their last tensors wait for room: of a pair two
  };
  std::vector<rank_state> states(ranks);
  const auto leave = [&](rank_state& of) {  // whether the edges have room
    for (edge*& full : of.full) {
      if (full == nullptr) continue;
      const std::size_t needed = full->sent - depth;  // tensors that were used
      if (full->used.size() < needed) return false;
      of.clock = greater_of(of.clock, full->used[needed - 1]);
      full = nullptr;
    }
    return true;
  };
  struct edge_input {
    edge* from = nullptr;  // none: the compute takes nothing of another stage
    bool remote = false;
  };
  const auto input_of = [&](std::size_t rank, const action& now) {
    const std::size_t stage = table.stage(rank, now.chunk);
    const bool forward = now.kind == action_kind::forward;
    const std::size_t source = forward ? stage - 1 : stage + 1;
    if (now.kind == action_kind::weight_gradient || source >= stages) return edge_input();
    return edge_input{&edges[forward ? 0 : 1][source], table.rank_of(source) != rank};
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rank_state& own = states[rank];
      const std::span<const action> list = table.actions(rank);
      for (; leave(own) && own.at < list.size(); ++own.at, moved = true) {
        const action& now = list[own.at];
        if (!is_compute(now.kind)) continue;
        // Both inputs are there when a pair begins, both outputs when it ends.
        const std::span<const action> together = list.subspan(own.at, now.paired ? 2 : 1);
        ticks clock = own.clock;
        bool waits = false;
        for (const action& each : together) {
          const edge_input input = input_of(rank, each);
          if (input.from == nullptr) continue;
          const ticks there = input.from->there[each.micro_batch];
          waits = waits || there == never;
          clock = greater_of(clock, there + (input.remote ? costs.message() : 0));
        }
        if (waits) break;
        for (const action& each : together) {
          const edge_input input = input_of(rank, each);
          if (input.remote) input.from->used.push_back(clock);
        }
        for (const action& each : together) clock += costs.stage(table.stage(rank, each.chunk)).of(each.kind);
        own.clock = clock - (now.paired ? costs.pair_saves() : 0);
        for (std::size_t i = 0; i < together.size(); ++i) {
          const action& each = together[i];
          if (each.kind == action_kind::weight_gradient) continue;
          const std::size_t stage = table.stage(rank, each.chunk);
          const bool forward = each.kind == action_kind::forward;
          edge& to = edges[forward ? 0 : 1][stage];
          to.there[each.micro_batch] = own.clock;
          const std::size_t user = forward ? stage + 1 : stage - 1;
          if (user < stages && table.rank_of(user) != rank && ++to.sent > depth) own.full[i] = &to;
        }
        own.at += together.size() - 1;
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
