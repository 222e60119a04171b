// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The search for pairs.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/exchanges.hpp"
#include "belay/parallel/schedule/pairs.hpp"
#include "belay/parallel/schedule/rules.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

BELAY_DECL pair_search::pair_search(const dynamic_table& of, const table_costs& costs)
    : of_(&of), costs_(&costs), rows_(of) {
  for (std::size_t rank = 0; rank < of.ranks(); ++rank) find(rank);
  least_ = time();
}

BELAY_DECL void pair_search::find(std::size_t rank) {
  const std::span<const planned_compute> row = rows_.actions(rank);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const action_kind kind = row[i].kind;
    if (kind == action_kind::weight_gradient) continue;
    std::size_t other = i + 1;
    while (other < row.size() && row[other].kind == action_kind::weight_gradient) ++other;
    if (other == row.size()) return;
    const bool begins = kind == action_kind::forward, ends = row[other].kind == action_kind::forward;
    if (begins == ends || row[i].micro_batch == row[other].micro_batch) continue;
    // A whole backward adds to the weights: no earlier addition may come after it.
    if (begins && other > i + 1 && row[other].kind == action_kind::backward) continue;
    possible_.push_back({rank, begins ? i : other, begins ? other : i});
    i = other;
  }
}

BELAY_DECL compute_lists pair_search::lists() const {
  const auto stage_of = [&](std::size_t rank, std::size_t chunk, std::size_t) { return of_->stage(rank, chunk); };
  compute_lists out(of_->ranks(), of_->micro_batches(), of_->chunks(), stage_of);
  auto next = possible_.begin();
  for (std::size_t rank = 0; rank < of_->ranks(); ++rank) {
    const std::span<const planned_compute> row = rows_.actions(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      while (next != possible_.end() && next->rank == rank && !next->formed) ++next;
      const bool pair = next != possible_.end() && next->rank == rank && i == lesser_of(next->forward, next->backward);
      if (!pair) {
        out.add(rank, row[i]);
        continue;
      }
      const std::size_t last = greater_of(next->forward, next->backward);
      planned_compute forward = row[next->forward];
      forward.paired = true;
      out.add(rank, forward);
      out.add(rank, row[next->backward]);
      for (std::size_t between = i + 1; between < last; ++between) out.add(rank, row[between]);
      i = last;
      ++next;
    }
    while (next != possible_.end() && next->rank == rank) ++next;
  }
  return out;
}

BELAY_DECL ticks pair_search::time() const {
  const compute_lists now = lists();
  eager_times times(now);
  if (!run_eagerly(now, *costs_, times)) return never;
  ticks total = 0;
  for (std::size_t rank = 0; rank < now.ranks(); ++rank)
    if (now.size(rank) > 0) total = greater_of(total, times.end[now.first(rank) + now.size(rank) - 1]);
  return total;
}

BELAY_DECL void pair_search::run() { form(0, possible_.size(), 0); }

BELAY_DECL void pair_search::form(std::size_t first, std::size_t end, std::size_t depth) {
  constexpr std::size_t deepest =
      6;  // parts of a large table are tried together: it takes no longer than 128 of its plays
  if (first == end) return;
  const auto set_formed = [&](bool formed) {
    for (std::size_t i = first; i < end; ++i) possible_[i].formed = formed;
  };
  set_formed(true);
  const ticks now = time();
  if (now != never && now <= least_) {
    least_ = now;
    return;
  }
  set_formed(false);
  if (end - first == 1 || depth == deepest) return;
  const std::size_t middle = first + (end - first) / 2;
  form(first, middle, depth + 1);
  form(middle, end, depth + 1);
}

BELAY_DECL std::size_t pair_search::formed() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(possible_.begin(), possible_.end(), [](const possible_pair& each) { return each.formed; }));
}

BELAY_DECL dynamic_table with_pairs(const dynamic_table& of, const table_costs& costs, where at) {
  if (costs.stages.size() != of.stages())
    throw usage_error("the costs of a schedule are those of " + std::to_string(of.stages()) + " stages, not " +
                          std::to_string(costs.stages.size()),
                      at);
  bool has_beside = false;
  for (std::size_t rank = 0; rank < of.ranks(); ++rank)
    for (const action& each : of.actions(rank)) has_beside = has_beside || is_beside(each.kind);
  if (has_beside || pairs_of(of) > 0) return of;
  pair_search search(of, costs);
  search.run();
  if (search.formed() == 0) return of;
  growing_sink sink;
  write_with_exchanges(search.lists(), sink);
  sink.next_rank();
  const auto stage_of = [&](std::size_t rank, std::size_t chunk, std::size_t) { return of.stage(rank, chunk); };
  dynamic_table found(std::string(of.name()), of.ranks(), of.micro_batches(), std::move(sink.actions),
                      std::move(sink.offsets), of.chunks(), stage_of);
  return proof(found).valid() ? std::move(found) : of;
}

BELAY_DECL dynamic_table with_pairs(const dynamic_table& of, where at) {
  table_costs equal;
  equal.stages.resize(of.stages());
  return with_pairs(of, equal, at);
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
