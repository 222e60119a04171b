// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Plays a proven table against a clock. Each stage has a time for a forward and one for a backward. An exchange runs
// beside the computes once its ranks have come to it; a rank waits for it where a compute uses what it brings, at its
// next exchange, or at the end of its row. Copies and collectives run beside computes, too. The result is how long the
// pipeline takes and how much of that is waiting: the prediction for a run's measured bubble.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/compute_lists.hpp"
#include "belay/parallel/schedule/play.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// Time in the unit of the given times (seconds, or whole units when `Time` is an integer).
template <class PerRank>
struct timeline_result {
  using time = typename PerRank::value_type;

  PerRank busy{};     // per rank: computing
  PerRank waiting{};  // per rank: for exchanges, and for what runs beside its computes
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

/// When actions beside the computes are over. Copies of a rank run one after the other, and so do its collectives, each
/// once the rank has come to it.
template <class Storage, class Time>
struct beside_times {
  constexpr beside_times(std::size_t ranks, std::size_t stages, std::size_t micro_batches)
      : copies(Storage::template each_rank<Time>(ranks)),
        collectives(copies),
        reloaded(Storage::template each_cell<Time>(stages, micro_batches)),
        gathered(Storage::template each_stage<Time>(stages)) {}

  typename Storage::template per_rank<Time> copies;
  typename Storage::template per_rank<Time> collectives;
  typename Storage::template per_cell<Time> reloaded;
  typename Storage::template per_stage<Time> gathered;
};

/// The exchanges of ranks: the one that each is at or was at last, and when received tensors were there.
template <class Storage, class Time>
struct exchange_times {
  constexpr exchange_times(std::size_t ranks, std::size_t stages, std::size_t micro_batches)
      : begun(Storage::template each_rank<Time>(ranks)), over(begun) {
    for (auto& end : posted) end = Storage::template each_cell<Time>(stages, micro_batches);
    for (auto& what : arrived) what = Storage::template each_cell<Time>(stages, micro_batches);
  }

  typename Storage::template per_rank<Time> begun;  // when its rank came to it
  typename Storage::template per_rank<Time> over;   // with all partners so far
  // By own_end, stage and number of the tensor.
  std::array<typename Storage::template per_cell<Time>, 4> posted;
  // By payload, the stage that takes it, and micro-batch.
  std::array<typename Storage::template per_cell<Time>, 2> arrived;
};

/// A clock for `play`. `takes(rank, action)` is the time of a compute, `Watch(rank, action, begin, end)` is called for
/// each. In a walk in which ranks wait in each exchange, what a compute or an exchange comes after was visited before.
template <any_table Table, class PerRank, class Takes, class Watch>
class clock_visitor {
 public:
  using time = typename PerRank::value_type;
  using beside = beside_times<typename Table::storage, time>;
  using exchanges = exchange_times<typename Table::storage, time>;

  constexpr clock_visitor(const Table& table, timeline_result<PerRank>& result, exchanges& of, beside& over,
                          time message, const Takes& takes, Watch& watch)
      : table_(table),
        micro_batches_(table.micro_batches()),
        over_(over),
        result_(result),
        exchanges_(of),
        message_(message),
        takes_(takes),
        watch_(watch) {}

  constexpr void compute(std::size_t rank, const action& now) {
    const time takes = takes_(rank, now);
    if (is_beside(now.kind) && now.kind != action_kind::recompute) return run_beside(rank, now, takes);
    if (has_beside_) wait_for_beside(rank, now);
    wait_for_input(rank, now);
    if (now.paired) wait_for_input(rank, *(&now + 1));  // both inputs are there when a pair begins
    const time begin = result_.end[rank];
    result_.end[rank] += takes;
    result_.busy[rank] += takes;
    watch_(rank, now, begin, result_.end[rank]);
  }
  constexpr void post(std::size_t rank) {
    wait_until(rank, exchanges_.over[rank]);
    exchanges_.begun[rank] = exchanges_.over[rank] = result_.end[rank];
  }
  constexpr void post_transfer(std::size_t rank, std::size_t end, std::size_t number) {
    posted_at(end, number) = exchanges_.begun[rank];
  }
  constexpr void meet(std::size_t rank, std::size_t end, std::size_t number) { meet_at(rank, posted_at(end, number)); }
  constexpr void wake(std::size_t waiting, std::size_t rank) { meet_at(waiting, exchanges_.begun[rank]); }
  constexpr void complete(std::size_t rank, std::span<const action> all) {
    for (const action& each : all) {
      for (const transfer& moved : each.transfers()) {
        if (moved.direction == transfer_direction::send) continue;
        arrived_at(moved.what, table_.stage(rank, moved.chunk), moved.micro_batch) = exchanges_.over[rank];
      }
    }
  }
  // Nothing runs beside any more when a rank is done.
  constexpr void end(std::size_t rank) {
    wait_until(rank, exchanges_.over[rank]);
    wait_until(rank, over_.copies[rank]);
    wait_until(rank, over_.collectives[rank]);
  }

 private:
  constexpr void run_beside(std::size_t rank, const action& now, time takes) {
    has_beside_ = true;
    if (now.kind == action_kind::release) return;
    const bool copies = now.kind == action_kind::offload || now.kind == action_kind::reload;
    time& over = copies ? over_.copies[rank] : over_.collectives[rank];
    if (over < result_.end[rank]) over = result_.end[rank];
    over += takes;
    const std::size_t stage = table_.stage(rank, now.chunk);
    if (now.kind == action_kind::reload) over_.reloaded.data()[stage * micro_batches_ + now.micro_batch] = over;
    if (now.kind == action_kind::gather) over_.gathered.data()[stage] = over;
  }
  constexpr void wait_for_beside(std::size_t rank, const action& now) {
    if (now.kind == action_kind::weight_gradient) return;
    const std::size_t stage = table_.stage(rank, now.chunk);
    wait_until(rank, over_.gathered.data()[stage]);
    if (now.kind != action_kind::forward)
      wait_until(rank, over_.reloaded.data()[stage * micro_batches_ + now.micro_batch]);
  }
  constexpr void wait_until(std::size_t rank, time moment) {
    if (moment <= result_.end[rank]) return;
    result_.waiting[rank] += moment - result_.end[rank];
    result_.end[rank] = moment;
  }
  constexpr void wait_for_input(std::size_t rank, const action& now) {
    if (now.kind == action_kind::weight_gradient || now.kind == action_kind::recompute) return;
    const std::size_t stage = table_.stage(rank, now.chunk);
    const bool forward = now.kind == action_kind::forward;
    if (forward ? stage == 0 : stage + 1 == table_.stages()) return;
    if (table_.rank_of(forward ? stage - 1 : stage + 1) == rank) return;
    wait_until(rank, arrived_at(forward ? payload::activation : payload::gradient, stage, now.micro_batch));
  }
  constexpr time& posted_at(std::size_t end, std::size_t number) {
    return exchanges_.posted[end % 4].data()[end / 4 * micro_batches_ + number];
  }
  constexpr time& arrived_at(payload what, std::size_t stage, std::size_t micro_batch) {
    return exchanges_.arrived[static_cast<std::size_t>(what)].data()[stage * micro_batches_ + micro_batch];
  }
  // A transfer of a rank's exchange has its partner's since `theirs`.
  constexpr void meet_at(std::size_t rank, time theirs) {
    const time over = greater_of(exchanges_.begun[rank], theirs) + message_;
    exchanges_.over[rank] = greater_of(exchanges_.over[rank], over);
  }

  const Table& table_;
  std::size_t micro_batches_;
  beside& over_;
  bool has_beside_ = false;
  timeline_result<PerRank>& result_;
  exchanges& exchanges_;
  time message_;
  const Takes& takes_;
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
        exchanges_(table.ranks(), table.stages(), table.micro_batches()),
        over_(table.ranks(), table.stages(), table.micro_batches()) {
    result_.busy = result_.waiting = result_.end = exchanges_.over;
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
  /// backward each, a recompute as long as a forward, and nothing else takes time. The result is valid until the next
  /// call. Throws usage_error where `forward` or `backward` has not one time for each stage.
  template <class Watch>
  constexpr const timeline_result<per_rank>& play_watched(std::span<const Time> forward, std::span<const Time> backward,
                                                          Watch& watch, where at = where::current()) {
    const std::size_t stages = table_->stages();
    if (forward.size() != stages || backward.size() != stages) {
      throw usage_error("a timeline needs one forward time and one backward time for each of " +
                            std::to_string(stages) + " stages, not " + std::to_string(forward.size()) + " and " +
                            std::to_string(backward.size()),
                        at);
    }
    return play_times(
        [&](std::size_t stage, action_kind kind) {
          if (kind == action_kind::forward || kind == action_kind::recompute) return forward[stage];
          if (is_beside(kind)) return Time{};
          if (kind == action_kind::backward) return backward[stage];
          const Time half = backward[stage] / 2;
          return kind == action_kind::input_gradient ? half : backward[stage] - half;
        },
        watch);
  }

  /// The timeline where one micro-batch takes `takes(stage, kind)`, with `watch` as above. The result is valid until
  /// the next call.
  template <class Takes, class Watch>
  constexpr const timeline_result<per_rank>& play_times(const Takes& takes, Watch& watch) {
    return walk([&](std::size_t rank, const action& now) { return takes(table_->stage(rank, now.chunk), now.kind); },
                Time{}, {}, watch);
  }

  /// The timeline with costs of every half of a backward, and tensors that travel as `by` says.
  template <schedule_costs Costs>
  constexpr const timeline_result<per_rank>& play_costs(const Costs& costs, transport by = {}) {
    auto nobody = [](auto&&...) {};
    return walk(
        [&](std::size_t rank, const action& now) {
          return costs.stage(table_->stage(rank, now.chunk)).of(now.kind) - (now.paired ? saved_by_pair(costs) : 0);
        },
        costs.message(), by, nobody);
  }

 private:
  template <class Takes, class Watch>
  constexpr const timeline_result<per_rank>& walk(const Takes& takes, Time message, transport by, Watch& watch) {
    result_.total = Time{};
    for (std::size_t rank = 0; rank < table_->ranks(); ++rank) {
      result_.busy[rank] = result_.waiting[rank] = result_.end[rank] = Time{};
      over_.copies[rank] = over_.collectives[rank] = exchanges_.over[rank] = Time{};
    }
    for (std::size_t stage = 0; stage < table_->stages(); ++stage) over_.gathered.data()[stage] = Time{};
    clock_visitor<Table, per_rank, Takes, Watch> clock(*table_, result_, exchanges_, over_, message, takes, watch);
    schedule::play(*table_, state_, clock, by);
    for (std::size_t rank = 0; rank < table_->ranks(); ++rank) {
      clock.end(rank);
      if (result_.end[rank] > result_.total) result_.total = result_.end[rank];
    }
    return result_;
  }

  const Table* table_;
  play_state<typename Table::storage> state_;
  exchange_times<typename Table::storage, Time> exchanges_;
  beside_times<typename Table::storage, Time> over_;
  timeline_result<per_rank> result_;
};

/// Plays a table once. Times are those of one micro-batch, one entry for each stage.
template <any_table Table>
[[nodiscard]] constexpr auto timeline(const Table& table, std::span<const double> forward_seconds,
                                      std::span<const double> backward_seconds, where at = where::current()) {
  timeline_player<Table> player(table, at);
  return player.play(forward_seconds, backward_seconds, at);
}

/// Costs of the stages of a table, one for each.
struct table_costs {
  std::vector<stage_costs> stages;
  ticks between_ranks = 0;
  ticks saved_by_pair = 0;

  [[nodiscard]] const stage_costs& stage(std::size_t number) const noexcept { return stages[number]; }
  [[nodiscard]] ticks message() const noexcept { return between_ranks; }
  [[nodiscard]] ticks pair_saves() const noexcept { return saved_by_pair; }
};

/// How many tensors each edge holds that were sent and not used yet: the fewest with which a table ends, and with which
/// it takes no longer than its computes. With 0 they travel in the table's exchanges, one of a rank at a time beside
/// the computes; with more, each edge for itself, and a rank waits after a send where the edge is full.
struct edge_depths {
  std::size_t to_run = 0;
  std::size_t to_reach_total = 0;
};

/// The time that a table takes with edges of `depth`, at least 1; -1 where it does not end.
[[nodiscard]] BELAY_DECL ticks time_with_depth(const dynamic_table& table, const table_costs& costs, std::size_t depth);

/// The depths of a table. Throws usage_error where its computes wait for each other, or `costs` has not one entry for
/// each stage.
[[nodiscard]] BELAY_DECL edge_depths find_depths(const dynamic_table& table, const table_costs& costs,
                                                 where at = where::current());

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/schedule/timeline.ipp"  // IWYU pragma: export
#endif
