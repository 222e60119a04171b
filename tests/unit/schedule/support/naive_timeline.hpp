// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The time of a schedule by the plainest means: a map of what is over, and sweeps over all ranks until nothing moves.
// It shares nothing with the library's own clock but the table, and is the judge where no formula is known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "belay/parallel/schedule.hpp"

namespace test {

/// Whether a simulator waits for all that a compute takes, or only the first micro-batch of each group, of as many as
/// there are ranks, waits for the way from the last rank to the first, and back.
enum class forgets { nothing, wrap_edges };

struct naive_result {
  std::int64_t total = 0;
  std::int64_t longest = 0;
  std::size_t peak = 0;
  bool ended = false;
};

template <class Table>
naive_result naive_timeline(const Table& table, std::int64_t forward, std::int64_t input, std::int64_t weight,
                            std::int64_t message, forgets what = forgets::nothing, std::int64_t saved = 0) {
  using belay::schedule::action;
  using belay::schedule::action_kind;
  using key = std::tuple<char, std::size_t, std::size_t>;  // F or I, stage, micro-batch
  std::map<key, std::int64_t> over;
  std::vector<std::vector<action>> lists(table.ranks());
  for (std::size_t rank = 0; rank < table.ranks(); ++rank)
    for (const action& next : table.actions(rank))
      if (belay::schedule::is_compute(next.kind)) lists[rank].push_back(next);
  std::vector<std::size_t> at(table.ranks());
  std::vector<std::int64_t> clock(table.ranks()), began(table.ranks(), -1);
  std::vector<std::size_t> kept(table.ranks());
  naive_result result;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
      while (at[rank] < lists[rank].size()) {
        // A pair needs what both of it need, and gives both when it ends.
        const bool pair = lists[rank][at[rank]].paired;
        std::vector<key> needs;
        for (std::size_t i = at[rank]; i <= at[rank] + (pair ? 1 : 0); ++i) {
          const action& next = lists[rank][i];
          const std::size_t stage = table.stage(rank, next.chunk), batch = next.micro_batch;
          const bool runs_forward = next.kind == action_kind::forward;
          if (runs_forward && stage > 0) needs.push_back({'F', stage - 1, batch});
          if (!runs_forward) needs.push_back({'F', stage, batch});
          if (next.kind == action_kind::weight_gradient) needs.push_back({'I', stage, batch});
          if (!runs_forward && next.kind != action_kind::weight_gradient && stage + 1 < table.stages())
            needs.push_back({'I', stage + 1, batch});
        }
        std::int64_t start = clock[rank];
        bool all = true;
        for (const key& need : needs) {
          const std::size_t from = table.rank_of(std::get<1>(need));
          const bool wraps = (from == 0 && rank + 1 == table.ranks()) || (rank == 0 && from + 1 == table.ranks());
          if (what == forgets::wrap_edges && wraps && std::get<2>(need) % table.ranks() != 0) continue;
          if (!over.contains(need)) {
            all = false;
            break;
          }
          start = std::max(start, over[need] + (from == rank ? 0 : message));
        }
        if (!all) break;
        if (began[rank] < 0) began[rank] = start;
        const std::size_t end = at[rank] + (pair ? 2 : 1);
        clock[rank] = start - (pair ? saved : 0);
        for (std::size_t i = at[rank]; i < end; ++i) {
          const action_kind kind = lists[rank][i].kind;
          clock[rank] += kind == action_kind::forward           ? forward
                         : kind == action_kind::input_gradient  ? input
                         : kind == action_kind::weight_gradient ? weight
                                                                : input + weight;
        }
        for (; at[rank] < end; ++at[rank]) {
          const action& next = lists[rank][at[rank]];
          const std::size_t stage = table.stage(rank, next.chunk);
          if (next.kind == action_kind::forward)
            over[{'F', stage, next.micro_batch}] = clock[rank];
          else if (next.kind != action_kind::weight_gradient)
            over[{'I', stage, next.micro_batch}] = clock[rank];
          if (next.kind == action_kind::forward) result.peak = std::max(result.peak, ++kept[rank]);
          if (next.kind == action_kind::backward || next.kind == action_kind::weight_gradient) --kept[rank];
        }
        moved = true;
      }
    }
  }
  result.ended = true;
  for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
    result.ended = result.ended && at[rank] == lists[rank].size();
    result.total = std::max(result.total, clock[rank]);
    result.longest = std::max(result.longest, clock[rank] - began[rank]);
  }
  return result;
}

}  // namespace test
