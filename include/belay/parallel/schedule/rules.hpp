// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The schedules. A rule writes the list of one stage to a sink; `generate` turns a rule into a table, at compile time
// or at start-up. In every rule the backwards of a stage run in micro-batch order 0, 1, 2, ...: gradients are added in
// the same order in every schedule, so their bits do not depend on it.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// Counts the actions of a table before its storage exists. Empty exchanges are left out.
struct counting_sink {
  std::size_t count = 0;

  constexpr void operator()(const action& next) noexcept { count += !next.is_exchange() || next.transfer_count > 0; }
};

/// Writes the actions of a table in order.
template <class Actions>
struct writing_sink {
  Actions* actions;
  std::size_t count = 0;

  constexpr void operator()(const action& next) {
    if (next.is_exchange() && next.transfer_count == 0) return;
    (*actions)[count++] = next;
  }
};

/// A schedule as code: an empty class with a `static constexpr std::string_view name` and a
/// `constexpr void operator()(auto& out, position at) const`, which calls `out(action)` for each action of stage
/// `at.stage`.
template <class Rule>
concept rule = std::default_initializable<Rule> && requires(const Rule& rule, counting_sink& out, position at) {
  { Rule::name } -> std::convertible_to<std::string_view>;
  rule(out, at);
};

/// Number of actions that a rule writes for all stages.
template <rule Rule>
[[nodiscard]] constexpr std::size_t action_count(std::size_t stages, std::size_t micro_batches) {
  counting_sink sink;
  for (std::size_t stage = 0; stage < stages; ++stage) Rule{}(sink, position{stage, stages, micro_batches});
  return sink.count;
}

/// Runs a rule for every stage into storage that holds exactly its actions.
template <rule Rule, class Storage>
[[nodiscard]] constexpr basic_table<Storage> written(std::size_t stages, std::size_t micro_batches,
                                                     typename Storage::action_list actions,
                                                     typename Storage::offset_list offsets) {
  writing_sink<typename Storage::action_list> sink{&actions};
  for (std::size_t stage = 0; stage < stages; ++stage) {
    offsets[stage] = sink.count;
    Rule{}(sink, position{stage, stages, micro_batches});
  }
  offsets[stages] = sink.count;
  return basic_table<Storage>(typename Storage::text(Rule::name), stages, micro_batches, std::move(actions),
                              std::move(offsets));
}

/// The rule's table as a constexpr value.
template <rule Rule, std::size_t Stages, std::size_t MicroBatches>
[[nodiscard]] constexpr auto generate() {
  static_assert(Stages > 0 && MicroBatches > 0,
                "a schedule needs at least one stage and one micro-batch: write one_f_one_b<Stages, MicroBatches>() "
                "with both above zero");
  using storage = fixed_storage<Stages, MicroBatches, action_count<Rule>(Stages, MicroBatches)>;
  return written<Rule, storage>(Stages, MicroBatches, {}, {});
}

/// The rule's table for sizes known at run time. Throws usage_error where one of them is 0, or one of them or
/// their product is above its limit.
template <rule Rule>
[[nodiscard]] dynamic_table generate(std::size_t stages, std::size_t micro_batches, where at = where::current()) {
  if (stages == 0 || micro_batches == 0) {
    throw usage_error("schedule " + std::string(Rule::name) + " needs at least one stage and one micro-batch, not " +
                          std::to_string(stages) + " and " + std::to_string(micro_batches),
                      at);
  }
  if (stages > most_stages || micro_batches > most_micro_batches || stages * micro_batches > most_cells) {
    throw usage_error("schedule " + std::string(Rule::name) + " of " + std::to_string(stages) + " stages and " +
                          std::to_string(micro_batches) + " micro-batches: at most are " + std::to_string(most_stages) +
                          " stages, " + std::to_string(most_micro_batches) + " micro-batches and " +
                          std::to_string(most_cells) + " of both multiplied",
                      at);
  }
  return written<Rule, dynamic_storage>(stages, micro_batches,
                                        std::vector<action>(action_count<Rule>(stages, micro_batches)),
                                        std::vector<std::size_t>(stages + 1));
}

/// Alternates one forward and one backward once the pipeline is full. A stage keeps at most min(m, p - stage)
/// micro-batches. In the steady state the send of an activation and the receive of a gradient form one exchange, and so
/// do the receive of an activation and the send of a gradient. In exchanges of their own they would deadlock.
struct one_f_one_b_rule {
  static constexpr std::string_view name = "1f1b";

  template <class Out>
  constexpr void operator()(Out& out, position at) const {
    const std::size_t behind = at.stages - at.stage - 1;
    const std::size_t warm = behind < at.micro_batches ? behind : at.micro_batches;
    const std::size_t steady = at.micro_batches - warm;
    for (std::size_t i = 0; i < warm; ++i) {
      receive_activation(out, at, i);
      out(action::compute(action_kind::forward, i));
      out(action::exchange().send(payload::activation, i, at.stage + 1));
    }
    if (steady > 0) receive_activation(out, at, warm);
    for (std::size_t i = 0; i < steady; ++i) {
      out(action::compute(action_kind::forward, warm + i));
      if (!at.last()) {
        out(action::exchange()
                .send(payload::activation, warm + i, at.stage + 1)
                .receive(payload::gradient, i, at.stage + 1));
      }
      out(action::compute(action_kind::backward, i));
      if (!at.first()) {
        action after = action::exchange().send(payload::gradient, i, at.stage - 1);
        if (i + 1 < steady) after.receive(payload::activation, warm + i + 1, at.stage - 1);
        out(after);
      }
    }
    for (std::size_t i = steady; i < at.micro_batches; ++i) {
      out(action::exchange().receive(payload::gradient, i, at.stage + 1));
      out(action::compute(action_kind::backward, i));
      if (!at.first()) out(action::exchange().send(payload::gradient, i, at.stage - 1));
    }
  }

 private:
  template <class Out>
  static constexpr void receive_activation(Out& out, position at, std::size_t micro_batch) {
    if (!at.first()) out(action::exchange().receive(payload::activation, micro_batch, at.stage - 1));
  }
};

/// All forwards, then all backwards. A stage keeps all m micro-batches. A send forms one exchange with the stage's next
/// receive, so that a stage may be one tensor ahead of its neighbour.
struct gpipe_rule {
  static constexpr std::string_view name = "gpipe";

  template <class Out>
  constexpr void operator()(Out& out, position at) const {
    if (!at.first()) out(action::exchange().receive(payload::activation, 0, at.stage - 1));
    for (std::size_t i = 0; i < at.micro_batches; ++i) {
      const bool more = i + 1 < at.micro_batches;
      out(action::compute(action_kind::forward, i));
      action after = action::exchange();
      if (!at.last()) after.send(payload::activation, i, at.stage + 1);
      if (more && !at.first()) after.receive(payload::activation, i + 1, at.stage - 1);
      if (!more && !at.last()) after.receive(payload::gradient, 0, at.stage + 1);
      out(after);
    }
    for (std::size_t i = 0; i < at.micro_batches; ++i) {
      out(action::compute(action_kind::backward, i));
      action after = action::exchange();
      if (!at.first()) after.send(payload::gradient, i, at.stage - 1);
      if (i + 1 < at.micro_batches && !at.last()) after.receive(payload::gradient, i + 1, at.stage + 1);
      out(after);
    }
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

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
