// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The phases of a trainer beside its training: their transitions, evaluations and rollouts, with its types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>

#include "belay/parallel/gathers.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/phase_residency.hpp"
#include "belay/train/phase_switch.hpp"
#include "train_moe/evaluate.hpp"
#include "train_moe/phase_cycle.hpp"
#include "train_moe/phase_rounds.hpp"
#include "train_moe/rollout.hpp"

namespace train_moe {

template <class Trainer>
class phase_session final : public phase_rounds {
 public:
  /// Evaluations read `text`. All outlive it.
  phase_session(Trainer& trainer, const phase_cycle& cycle, std::span<const std::int32_t> text)
      : phase_rounds(trainer.settings(), trainer.mesh(), cycle,
                     trainer.settings().sequence + rollout_settings{}.prompt.size()),
        trainer_(&trainer),
        residency_(trainer.run(),
                   belay::residency_memory{trainer.settings().phase_tier, Trainer::files_of(trainer.settings())},
                   trainer.store()),
        switch_(trainer.run(), trainer.mesh(), trainer.store()),
        now_(switch_.begin()),
        evaluation_(trainer, text, trainer.settings().sequence),
        rollout_(trainer, {.context = trainer.settings().sequence}, trainer.settings().sequence) {
    switch_.moves(residency_);
  }

  [[nodiscard]] double evaluate() override { return evaluation_.run().mean_loss(); }

 private:
  using any_phase = std::variant<belay::in_phase<belay::phase::train>, belay::in_phase<belay::phase::eval>,
                                 belay::in_phase<belay::phase::rollout>>;

  [[nodiscard]] bool rehearsing() const override { return trainer_->rehearsing(); }
  const belay::transition& enter_phase(belay::phase next) override {
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
    return switch_.last();
  }
  [[nodiscard]] belay::gather_counts take_gathered(belay::phase of) override {
    return trainer_->store().take_gathered(of);
  }
  void rehearse_evaluation() override { evaluation_.rehearse(); }
  void rehearse_rollout() override { rollout_.rehearse(); }
  void make_room(std::size_t text) override { rollout_.make_room(text); }
  [[nodiscard]] std::span<const char> draw(std::span<const std::size_t> lengths, std::uint64_t seed) override {
    return rollout_.run(lengths, seed);
  }

  Trainer* trainer_;
  belay::phase_residency<typename Trainer::run_type> residency_;
  belay::phase_switch<typename Trainer::run_type, typename Trainer::store_type> switch_;
  any_phase now_;
  text_evaluation<Trainer> evaluation_;
  rollout<Trainer> rollout_;
};

}  // namespace train_moe
