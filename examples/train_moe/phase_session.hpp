// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a run does between its training steps: the other phases of its cycle, each entered and left by a transition. On
// all ranks, and in the rehearsal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "belay/step/phase.hpp"
#include "belay/train/phase_residency.hpp"
#include "belay/train/phase_switch.hpp"
#include "train_moe/corpus.hpp"
#include "train_moe/evaluate.hpp"
#include "train_moe/phase_cycle.hpp"
#include "train_moe/phase_lines.hpp"
#include "train_moe/rollout.hpp"

namespace train_moe {

template <class Trainer>
class phase_session {
 public:
  /// Evaluations read `text`. Both outlive it.
  phase_session(Trainer& trainer, const phase_cycle& cycle, std::span<const std::int32_t> text)
      : trainer_(&trainer),
        cycle_(&cycle),
        residency_(trainer.run(),
                   belay::residency_memory{trainer.settings().phase_tier, Trainer::files_of(trainer.settings())},
                   trainer.store()),
        switch_(trainer.run(), trainer.mesh(), trainer.store()),
        now_(switch_.begin()),
        evaluation_(trainer, text, sequence()),
        rollout_(trainer, {.context = sequence()}, sequence()),
        lengths_(static_cast<std::size_t>(trainer.mesh().shape().data)),
        lines_(sequence() + rollout_settings{}.prompt.size(), lengths_.size()) {
    switch_.moves(residency_);
  }

  /// After step `number`: the phases that follow it, if it ends a cycle's training. `write(line)` gets the JSON line of
  /// each pass, rollout and transition, `say(line)` a line for people of each pass and rollout. Returns the loss of the
  /// last evaluation among them. Collective over the world.
  template <class Write, class Say>
  std::optional<double> after(std::size_t number, Write&& write, Say&& say) {
    std::optional<double> loss;
    if (!cycle_->ends_with(number)) return loss;
    for (const phase_cycle::entry& each : cycle_->entries()) {
      if (each.which == belay::phase::train) continue;
      enter(each.which, write);
      for (std::size_t i = 0; i < each.count; ++i)
        if (each.which == belay::phase::eval)
          loss = evaluate(number, write, say);
        else
          roll_out(number, write, say);
    }
    enter(belay::phase::train, write);
    return loss;
  }

  /// The run goes on after step `number`: its passes are counted as if it had not ended.
  void continue_after(std::size_t number) noexcept {
    evaluations_ = cycle_->passes_until(number, belay::phase::eval);
    rollouts_ = cycle_->passes_until(number, belay::phase::rollout);
  }

  /// Leases what the largest pass of each phase does.
  void rehearse() {
    const auto silent = [](std::string_view) {};
    enter(belay::phase::eval, silent);
    evaluation_.rehearse();
    enter(belay::phase::rollout, silent);
    rollout_.rehearse();
    enter(belay::phase::train, silent);
  }

  /// The mean loss of the text of evaluations, in whatever phase.
  [[nodiscard]] double evaluate() { return evaluation_.run().mean_loss(); }
  /// A text of `length` bytes, by one pipeline; the others take part. As of `rollout::run`.
  [[nodiscard]] std::span<const char> sample(std::size_t length, std::uint64_t seed) {
    std::fill(lengths_.begin(), lengths_.end(), std::size_t{0});
    lengths_[0] = length;
    rollout_.make_room(length);
    return rollout_.run(lengths_, seed);
  }

 private:
  using any_phase = std::variant<belay::in_phase<belay::phase::train>, belay::in_phase<belay::phase::eval>,
                                 belay::in_phase<belay::phase::rollout>>;

  [[nodiscard]] std::size_t sequence() const noexcept { return trainer_->settings().sequence; }
  [[nodiscard]] const auto& world() const { return trainer_->mesh().control(); }

  template <class Write>
  void enter(belay::phase next, Write&& write) {
    using belay::phase;
    now_ = std::visit(
        [&]<phase From>(belay::in_phase<From>& from) -> any_phase {
          if constexpr (From != phase::train)
            if (next == phase::train) return switch_.to_train(std::move(from));
          if constexpr (From != phase::eval)
            if (next == phase::eval) return switch_.to_eval(std::move(from));
          if constexpr (From != phase::rollout)
            if (next == phase::rollout) return switch_.to_rollout(std::move(from));
          return std::move(from);  // it is there
        },
        now_);
    if (!trainer_->rehearsing()) write(lines_.transition(world(), switch_.last()));
  }
  double evaluate(std::size_t after_step, auto& write, auto& say) {
    const double loss = evaluate();
    const auto counts = trainer_->store().take_gathered(belay::phase::eval);
    write(lines_.evaluation(world(), ++evaluations_, after_step, loss, counts));
    char words[64];
    std::snprintf(words, sizeof words, "eval %zu  loss %.4f\n", evaluations_, loss);
    say(std::string_view(words));
    return loss;
  }
  void roll_out(std::size_t after_step, auto& write, auto& say) {
    const std::uint64_t seed = corpus::mix(trainer_->settings().seed + ++rollouts_);
    for (std::size_t d = 0; d < lengths_.size(); ++d)
      lengths_[d] = 1 + static_cast<std::size_t>(corpus::mix(seed + d) % sequence());
    const std::span<const char> text = rollout_.run(lengths_, seed);
    const auto counts = trainer_->store().take_gathered(belay::phase::rollout);
    write(lines_.rollout(world(), rollouts_, after_step, lengths_, text, counts));
    char words[64];
    std::snprintf(words, sizeof words, "rollout %zu  %zu bytes\n", rollouts_, text.size());
    say(std::string_view(words));
  }

  Trainer* trainer_;
  const phase_cycle* cycle_;
  belay::phase_residency<typename Trainer::run_type> residency_;
  belay::phase_switch<typename Trainer::run_type, typename Trainer::store_type> switch_;
  any_phase now_;
  text_evaluation<Trainer> evaluation_;
  rollout<Trainer> rollout_;
  std::vector<std::size_t> lengths_;  // of the rollout, by coordinate of data
  phase_lines lines_;
  std::size_t evaluations_ = 0, rollouts_ = 0;
};

}  // namespace train_moe
