// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Plays a proven table against a clock. Each stage has a time for a forward and one for a backward; transfers take no
// time, but wait for their partner. The result is how long the pipeline takes and how much of that is waiting: the
// prediction for a run's measured bubble.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/play.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// Time in the unit of the given times (seconds, or whole units when `Time` is an integer).
template <class PerRank>
struct timeline_result {
  using time = typename PerRank::value_type;

  PerRank busy{};     // per rank: computing
  PerRank waiting{};  // per rank: in an exchange until its partners came
  PerRank end{};      // per rank: when its last action is done
  time total{};       // when the last rank is done

  /// The share of its own pipeline phase in which a rank waits for a neighbour's tensor, mean over ranks. A rank can
  /// measure it without communication. 0 where nothing takes time.
  [[nodiscard]] constexpr double bubble() const noexcept {
    double sum = 0;
    for (std::size_t rank = 0; rank < waiting.size(); ++rank) {
      if (end[rank] > time{}) sum += static_cast<double>(waiting[rank]) / static_cast<double>(end[rank]);
    }
    return sum / static_cast<double>(waiting.size());
  }

  /// The share of the whole pipeline in which a rank does not compute, mean over ranks. With equal stages it is
  /// (p - 1) / (m + p - 1) for GPipe and 1F1B.
  [[nodiscard]] constexpr double idle() const noexcept {
    if (!(total > time{})) return 0;
    double sum = 0;
    for (std::size_t rank = 0; rank < busy.size(); ++rank) sum += static_cast<double>(total - busy[rank]);
    return sum / (static_cast<double>(total) * static_cast<double>(busy.size()));
  }
};

/// A clock for `play`. `Watch(rank, action, begin, end)` is called for every compute.
template <any_table Table, class PerRank, class Watch>
class clock_visitor {
 public:
  using time = typename PerRank::value_type;

  constexpr clock_visitor(const Table& table, timeline_result<PerRank>& result, PerRank& met,
                          std::span<const time> forward, std::span<const time> backward, Watch& watch)
      : table_(table), result_(result), met_(met), forward_(forward), backward_(backward), watch_(watch) {}

  constexpr void compute(std::size_t rank, const action& now) {
    const std::size_t stage = table_.stage(rank, now.chunk);
    time takes = now.kind == action_kind::forward ? forward_[stage] : backward_[stage];
    if (now.kind == action_kind::input_gradient) takes /= 2;
    if (now.kind == action_kind::weight_gradient) takes -= takes / 2;
    const time begin = result_.end[rank];
    result_.end[rank] += takes;
    result_.busy[rank] += takes;
    watch_(rank, now, begin, result_.end[rank]);
  }
  constexpr void post(std::size_t rank) { met_[rank] = result_.end[rank]; }
  constexpr void meet(std::size_t rank, std::size_t peer) {
    // Both wait in their groups, so their clocks show when they posted.
    if (result_.end[peer] > met_[rank]) met_[rank] = result_.end[peer];
    if (result_.end[rank] > met_[peer]) met_[peer] = result_.end[rank];
  }
  constexpr void complete(std::size_t rank) {
    result_.waiting[rank] += met_[rank] - result_.end[rank];
    result_.end[rank] = met_[rank];
  }

 private:
  const Table& table_;
  timeline_result<PerRank>& result_;
  PerRank& met_;
  std::span<const time> forward_;
  std::span<const time> backward_;
  Watch& watch_;
};

/// Plays one table repeatedly without allocating: the buffers are made once. It keeps a pointer to the table, which
/// must outlive it. A table without a proof is a usage_error with the reason.
template <any_table Table, class Time = double>
class timeline_player {
 public:
  using per_rank = typename Table::storage::template per_rank<Time>;

  explicit constexpr timeline_player(const Table& table, where at = where::current())
      : table_(&table),
        state_(table.ranks(), table.stages()),
        met_(Table::storage::template each_rank<Time>(table.ranks())) {
    result_.busy = met_;
    result_.waiting = met_;
    result_.end = met_;
    const auto proven = proof(table);
    if (!proven.valid()) throw usage_error("this schedule cannot run: " + explain(proven.reason), at);
  }
  timeline_player(const Table&& table, where at = where::current()) = delete;  // it would point to a temporary

  /// The times of each stage for one micro-batch. An input gradient and a weight gradient take half a backward each.
  /// The result is valid until the next call.
  constexpr const timeline_result<per_rank>& play(std::span<const Time> forward, std::span<const Time> backward,
                                                   where at = where::current()) {
    auto nobody = [](auto&&...) {};
    return play_watched(forward, backward, nobody, at);
  }

  /// The timeline of the table with the given times of each stage for one micro-batch. For every compute, in the order
  /// of the walk, it calls `watch(rank, action, begin, end)`. An input gradient and a weight gradient take half a
  /// backward each. The result is valid until the next call. Throws usage_error where `forward` or `backward` has not
  /// one time for each stage.
  template <class Watch>
  constexpr const timeline_result<per_rank>& play_watched(std::span<const Time> forward,
                                                           std::span<const Time> backward, Watch& watch,
                                                           where at = where::current()) {
    const std::size_t stages = table_->stages();
    if (forward.size() != stages || backward.size() != stages) {
      throw usage_error("a timeline needs one forward time and one backward time for each of " +
                            std::to_string(stages) + " stages, not " + std::to_string(forward.size()) + " and " +
                            std::to_string(backward.size()),
                        at);
    }
    result_.total = Time{};
    for (std::size_t rank = 0; rank < table_->ranks(); ++rank) {
      result_.busy[rank] = result_.waiting[rank] = result_.end[rank] = Time{};
    }
    clock_visitor<Table, per_rank, Watch> clock(*table_, result_, met_, forward, backward, watch);
    schedule::play(*table_, state_, clock);
    for (std::size_t rank = 0; rank < table_->ranks(); ++rank) {
      if (result_.end[rank] > result_.total) result_.total = result_.end[rank];
    }
    return result_;
  }

 private:
  const Table* table_;
  play_state<typename Table::storage> state_;
  per_rank met_;  // per rank: when the group it stands in has met all partners so far
  timeline_result<per_rank> result_;
};

/// Plays a table once. Times are those of one micro-batch, one entry for each stage.
template <any_table Table>
[[nodiscard]] constexpr auto timeline(const Table& table, std::span<const double> forward_seconds,
                                      std::span<const double> backward_seconds, where at = where::current()) {
  timeline_player<Table> player(table, at);
  return player.play(forward_seconds, backward_seconds, at);
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
