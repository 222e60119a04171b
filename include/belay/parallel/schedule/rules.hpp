// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The schedules. A rule says what a rank computes, in order; `generate` finds the exchanges and makes a table of it, at
// compile time or at start-up. In every rule the backwards of a chunk run in micro-batch order 0, 1, 2, ...: gradients
// are added in the same order in every schedule, so their bits do not depend on it.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/schedule/compute_lists.hpp"
#include "belay/parallel/schedule/exchanges.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// Counts the actions of a table before its storage exists, and those that are exchanges. Empty ones are left out.
struct counting_sink {
  std::size_t count = 0;
  std::size_t exchanges = 0;

  constexpr void next_rank() noexcept {}
  constexpr void operator()(const planned_compute&) noexcept { ++count; }
  constexpr void operator()(const action& next) noexcept {
    count += !next.is_exchange() || next.transfer_count > 0;
    exchanges += next.is_exchange() && next.transfer_count > 0;
  }
};

/// Writes the actions of a table in order.
template <class Actions, class Offsets>
struct writing_sink {
  Actions* actions;
  Offsets* offsets;
  std::size_t count = 0;
  std::size_t ranks = 0;

  constexpr void next_rank() { (*offsets)[ranks++] = count; }
  constexpr void operator()(const planned_compute& next) { (*actions)[count++] = to_action(next); }
  constexpr void operator()(const action& next) {
    if (next.is_exchange() && next.transfer_count == 0) return;
    (*actions)[count++] = next;
  }
};

/// Writes the actions of a table whose size is known at the end.
struct growing_sink {
  std::vector<action> actions;
  std::vector<std::size_t> offsets;

  void next_rank() { offsets.push_back(actions.size()); }
  void operator()(const planned_compute& next) { actions.push_back(to_action(next)); }
  void operator()(const action& next) {
    if (!next.is_exchange() || next.transfer_count > 0) actions.push_back(next);
  }
};

/// Takes what a rule writes for one rank.
struct compute_sink {
  compute_lists* lists;
  std::size_t rank;

  constexpr void operator()(const planned_compute& next) { lists->add(rank, next); }
  constexpr void operator()(const action& next) { lists->add(rank, to_compute(next)); }
};

/// A schedule as code: a class with a `static constexpr std::string_view name` and a
/// `constexpr void operator()(auto& out, rank_position at) const`, which calls `out(plan_compute(...))` for each
/// compute of rank `at.rank`. It may write exchanges too, and then writes all of them: `out(action)`. `placement
/// placed() const` says where stages lie, where a rank holds more than one.
template <class Rule>
concept rank_rule = requires(const Rule& rule, counting_sink& out, rank_position at) {
  { Rule::name } -> std::convertible_to<std::string_view>;
  rule(out, at);
};
/// A schedule as code that writes the lists of all ranks at once: `constexpr void write(compute_lists& lists) const`,
/// which calls `lists.add(rank, kind, micro_batch, chunk)`.
template <class Rule>
concept joint_rule = requires(const Rule& rule, compute_lists& lists) {
  { Rule::name } -> std::convertible_to<std::string_view>;
  rule.write(lists);
};
template <class Rule>
concept rule = rank_rule<Rule> || joint_rule<Rule>;

/// Where the stages of a rule's schedule lie.
template <rule Rule>
[[nodiscard]] constexpr placement placed_by(const Rule& rule) {
  if constexpr (requires { rule.placed(); }) return rule.placed();
  return {};
}

/// The fewest micro-batches that a rule's schedule has.
template <rule Rule>
[[nodiscard]] constexpr std::size_t least_micro_batches([[maybe_unused]] const Rule& rule,
                                                        [[maybe_unused]] std::size_t ranks) {
  if constexpr (requires { rule.least_micro_batches(ranks); }) return rule.least_micro_batches(ranks);
  return 1;
}

/// The lists of a rule that writes no exchanges.
template <rule Rule>
[[nodiscard]] constexpr compute_lists lists_of(const Rule& rule, std::size_t ranks, std::size_t micro_batches) {
  const placement placed = placed_by(rule);
  compute_lists lists(ranks, micro_batches, placed.chunks, placed.stage);
  if constexpr (rank_rule<Rule>) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      compute_sink sink{&lists, rank};
      rule(sink, rank_position{rank, ranks, micro_batches});
    }
  } else {
    rule.write(lists);
  }
  return lists;
}

/// Writes a rule's table to `out`, by rank.
template <rule Rule, class Out>
constexpr void write_table(const Rule& rule, std::size_t ranks, std::size_t micro_batches, Out& out) {
  if constexpr (rank_rule<Rule>) {
    counting_sink counted;
    for (std::size_t rank = 0; rank < ranks && counted.exchanges == 0; ++rank)
      rule(counted, rank_position{rank, ranks, micro_batches});
    if (counted.exchanges > 0) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        out.next_rank();
        rule(out, rank_position{rank, ranks, micro_batches});
      }
      return;
    }
  }
  write_with_exchanges(lists_of(rule, ranks, micro_batches), out);
}

/// The cost of a rule's schedule, without its table. The rule writes no exchanges.
template <rule Rule, schedule_costs Costs>
[[nodiscard]] constexpr eager_cost cost_of(const Rule& rule, std::size_t ranks, std::size_t micro_batches,
                                           const Costs& costs) {
  return cost_of(lists_of(rule, ranks, micro_batches), costs);
}

/// Number of actions that a rule's table has.
template <rule Rule>
[[nodiscard]] constexpr std::size_t action_count(const Rule& rule, std::size_t ranks, std::size_t micro_batches) {
  counting_sink sink;
  write_table(rule, ranks, micro_batches, sink);
  return sink.count;
}

/// The table of a rule, which is a value, as a constexpr value.
template <auto Rule, std::size_t Ranks, std::size_t MicroBatches>
[[nodiscard]] constexpr auto generate() {
  static_assert(Ranks > 0 && MicroBatches > 0,
                "a schedule needs at least one stage and one micro-batch: write one_f_one_b<Stages, MicroBatches>() "
                "with both above zero");
  static_assert(MicroBatches >= least_micro_batches(Rule, Ranks),
                "this schedule needs more micro-batches: DualPipeV two for each rank");
  constexpr std::size_t chunks = placed_by(Rule).chunks;
  using storage = fixed_storage<Ranks, MicroBatches, action_count(Rule, Ranks, MicroBatches), chunks>;
  typename storage::action_list actions{};
  typename storage::offset_list offsets{};
  writing_sink<typename storage::action_list, typename storage::offset_list> sink{&actions, &offsets};
  write_table(Rule, Ranks, MicroBatches, sink);
  sink.next_rank();
  return basic_table<storage>(decltype(Rule)::name, Ranks, MicroBatches, actions, offsets, placed_by(Rule));
}
/// The table of a rule without values of its own.
template <rule Rule, std::size_t Ranks, std::size_t MicroBatches>
[[nodiscard]] constexpr auto generate() {
  return generate<Rule{}, Ranks, MicroBatches>();
}

/// Throws usage_error where one of the sizes of a rule's schedule is 0, or one of them or their product is above its
/// limit, or the rule needs more micro-batches.
template <rule Rule>
void expect_sizes(const Rule& rule, std::size_t ranks, std::size_t micro_batches, where at) {
  const std::string name(Rule::name);
  const std::size_t chunks = placed_by(rule).chunks;
  if (ranks == 0 || micro_batches == 0 || chunks == 0) {
    throw usage_error("schedule " + name + " needs at least one stage and one micro-batch, not " +
                          std::to_string(ranks * chunks) + " and " + std::to_string(micro_batches),
                      at);
  }
  if (ranks > most_stages || micro_batches > most_micro_batches || chunks > most_stages / ranks ||
      ranks * chunks > most_cells / micro_batches) {
    throw usage_error("schedule " + name + " of " + std::to_string(ranks) + " stages and " +
                          std::to_string(micro_batches) + " micro-batches: at most are " + std::to_string(most_stages) +
                          " stages, " + std::to_string(most_micro_batches) + " micro-batches and " +
                          std::to_string(most_cells) + " of both multiplied",
                      at);
  }
  if (const std::size_t least = least_micro_batches(rule, ranks); micro_batches < least) {
    throw usage_error("schedule " + name + " on " + std::to_string(ranks) + " ranks needs at least " +
                          std::to_string(least) + " micro-batches, not " + std::to_string(micro_batches),
                      at);
  }
}

/// The rule's table for sizes known at run time. Throws as `expect_sizes` does.
template <rule Rule>
[[nodiscard]] dynamic_table generate(const Rule& rule, std::size_t ranks, std::size_t micro_batches,
                                     where at = where::current()) {
  expect_sizes(rule, ranks, micro_batches, at);
  growing_sink sink;
  write_table(rule, ranks, micro_batches, sink);
  sink.next_rank();
  return dynamic_table(std::string(Rule::name), ranks, micro_batches, std::move(sink.actions), std::move(sink.offsets),
                       placed_by(rule));
}
template <rule Rule>
[[nodiscard]] dynamic_table generate(std::size_t ranks, std::size_t micro_batches, where at = where::current()) {
  return generate(Rule{}, ranks, micro_batches, at);
}

/// All forwards, then all backwards. A rank keeps all m micro-batches.
struct gpipe_rule {
  static constexpr std::string_view name = "gpipe";

  template <class Out>
  constexpr void operator()(Out& out, rank_position at) const {
    for (std::size_t i = 0; i < at.micro_batches; ++i) out(plan_compute(action_kind::forward, i));
    for (std::size_t i = 0; i < at.micro_batches; ++i) out(plan_compute(action_kind::backward, i));
  }
};

/// The order of the computes of a rank with several chunks: groups of micro-batches, of which every chunk computes one
/// after the other. What is left over is the last group, where it is one micro-batch a rank at least; a smaller one
/// would make ranks wait for each other, so it is spread over the first groups. Backwards take the chunks the other way
/// round.
class interleaved_order {
 public:
  /// Groups of `group` micro-batches on `ranks`; 0: as many as there are ranks.
  constexpr interleaved_order(std::size_t ranks, std::size_t micro_batches, std::size_t chunks, std::size_t group)
      : micro_batches_(micro_batches), chunks_(chunks) {
    const std::size_t asked = group == 0 ? ranks : group;
    first_ = asked < micro_batches ? asked : micro_batches;
    const std::size_t groups = micro_batches / first_, left = micro_batches % first_;
    if (left == 0 || left >= ranks) return;
    later_ = micro_batches / groups;
    larger_ = micro_batches % groups;
    first_ = larger_ > 0 ? later_ + 1 : later_;
  }

  /// Micro-batches of the first group, which no other exceeds.
  [[nodiscard]] constexpr std::size_t group() const noexcept { return first_; }
  [[nodiscard]] constexpr planned_compute forward(std::size_t number) const { return at(number, action_kind::forward); }
  [[nodiscard]] constexpr planned_compute backward(std::size_t number, action_kind kind) const {
    planned_compute found = at(number, kind);
    found.chunk = static_cast<std::uint16_t>(chunks_ - 1 - found.chunk);
    return found;
  }

 private:
  [[nodiscard]] constexpr planned_compute at(std::size_t number, action_kind kind) const {
    const std::size_t in_first = larger_ * first_ * chunks_;
    const bool is_later = later_ > 0 && number >= in_first;
    const std::size_t usual = is_later ? later_ : first_, skipped = is_later ? in_first : 0;
    const std::size_t first = skipped / chunks_ + (number - skipped) / (usual * chunks_) * usual;
    const std::size_t size = micro_batches_ - first < usual ? micro_batches_ - first : usual;
    const std::size_t within = number - first * chunks_;
    return plan_compute(kind, first + within % size, within / size);
  }

  std::size_t micro_batches_;
  std::size_t chunks_;
  std::size_t first_ = 1;  // size of the first groups
  std::size_t later_ = 0;  // of those after `larger_` of them; 0: all are alike
  std::size_t larger_ = 0;
};

/// 1F1B over `chunks` stages of each rank, which lie in a loop: the bubble is that much smaller, and more is kept.
/// `group` micro-batches pass a chunk before the next one begins; 0: as many as there are ranks. With one chunk it is
/// 1F1B: it alternates one forward and one backward once the pipeline is full, and a rank keeps at most
/// min(m, p - rank) micro-batches. Warm-up after Narayanan et al. (2021), "Efficient Large-Scale Language Model
/// Training on GPU Clusters".
struct interleaved_rule {
  static constexpr std::string_view name = "interleaved";

  std::size_t chunks = 2;
  std::size_t group = 0;

  [[nodiscard]] constexpr placement placed() const { return {chunks, stage_in_loop}; }
  template <class Out>
  constexpr void operator()(Out& out, rank_position at) const {
    const interleaved_order order(at.ranks, at.micro_batches, chunks, group);
    const std::size_t all = at.micro_batches * chunks;
    const std::size_t ahead = (chunks == 1 ? 1 : 2) * (at.ranks - 1 - at.rank) + (chunks - 1) * order.group();
    const std::size_t warm = ahead < all ? ahead : all;
    for (std::size_t i = 0; i < warm; ++i) out(order.forward(i));
    for (std::size_t i = 0; i < all; ++i) {
      if (warm + i < all) out(order.forward(warm + i));
      out(order.backward(i, action_kind::backward));
    }
  }
};

/// Alternates one forward and one backward once the pipeline is full. A rank keeps at most min(m, p - rank)
/// micro-batches.
struct one_f_one_b_rule {
  static constexpr std::string_view name = "1f1b";

  template <class Out>
  constexpr void operator()(Out& out, rank_position at) const {
    interleaved_rule{1}(out, at);
  }
};

/// Every chunk runs all micro-batches forward before the next one begins (Lamy-Poirier (2023), "Breadth-First Pipeline
/// Parallelism"). Backwards run in rising order too.
struct breadth_first_rule {
  static constexpr std::string_view name = "bfs";

  std::size_t chunks = 2;

  [[nodiscard]] constexpr placement placed() const { return {chunks, stage_in_loop}; }
  template <class Out>
  constexpr void operator()(Out& out, rank_position at) const {
    const interleaved_order order(at.ranks, at.micro_batches, chunks, at.micro_batches);
    const std::size_t all = at.micro_batches * chunks;
    for (std::size_t i = 0; i < all; ++i) out(order.forward(i));
    for (std::size_t i = 0; i < all; ++i) out(order.backward(i, action_kind::backward));
  }
};

/// 1F1B as a constexpr value.
template <std::size_t Stages, std::size_t MicroBatches>
[[nodiscard]] constexpr auto one_f_one_b() {
  return generate<one_f_one_b_rule, Stages, MicroBatches>();
}
/// 1F1B for sizes known at run time: the same table.
[[nodiscard]] inline dynamic_table one_f_one_b(std::size_t stages, std::size_t micro_batches,
                                               where at = where::current()) {
  return generate<one_f_one_b_rule>(stages, micro_batches, at);
}

/// GPipe as a constexpr value.
template <std::size_t Stages, std::size_t MicroBatches>
[[nodiscard]] constexpr auto gpipe() {
  return generate<gpipe_rule, Stages, MicroBatches>();
}
/// GPipe for sizes known at run time: the same table.
[[nodiscard]] inline dynamic_table gpipe(std::size_t stages, std::size_t micro_batches, where at = where::current()) {
  return generate<gpipe_rule>(stages, micro_batches, at);
}

/// Writes a table anew, with the actions beside computes that it has, each before the compute that comes after it.
class merging_sink {
 public:
  explicit merging_sink(const dynamic_table& of) : of_(&of) {}

  void next_rank() {
    if (begun_) copy_until_compute();
    begun_ = true;
    left_ = of_->actions(made_.offsets.size());
    made_.next_rank();
  }
  void operator()(const planned_compute& next) {
    copy_until_compute();
    left_ = left_.subspan(1);
    made_(next);
  }
  void operator()(const action& next) { made_(next); }
  [[nodiscard]] growing_sink take() {
    copy_until_compute();
    made_.next_rank();
    return std::move(made_);
  }

 private:
  void copy_until_compute() {
    for (; !left_.empty() && !is_compute(left_.front().kind); left_ = left_.subspan(1))
      if (is_beside(left_.front().kind)) made_(left_.front());
  }

  const dynamic_table* of_;
  growing_sink made_;
  std::span<const action> left_;  // of the rank's row
  bool begun_ = false;
};

/// A table whose computes stay in their order, with exchanges that let it run. Those that it has are left out. Throws
/// usage_error where no exchanges would: some computes wait for each other, or a rank has more than four tensors to
/// exchange between two computes.
[[nodiscard]] inline dynamic_table with_exchanges(const dynamic_table& of) {
  const auto stage_of = [&](std::size_t rank, std::size_t chunk, std::size_t) { return of.stage(rank, chunk); };
  merging_sink merged(of);
  write_with_exchanges(compute_lists(of), merged);
  growing_sink sink = merged.take();
  return dynamic_table(std::string(of.name()), of.ranks(), of.micro_batches(), std::move(sink.actions),
                       std::move(sink.offsets), of.chunks(), stage_of);
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
