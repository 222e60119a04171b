// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A session of a rank with its types: the trainer and its phases, behind what the body of every rank calls.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "belay/comm/rank.hpp"
#include "train_moe/phase_session.hpp"
#include "train_moe/prepared_run.hpp"
#include "train_moe/rank_body.hpp"
#include "train_moe/rank_run.hpp"
#include "train_moe/rank_trainer.hpp"
#include "train_moe/run_state.hpp"
#include "train_moe/trainer.hpp"
#include "train_moe/weights.hpp"

namespace train_moe {

template <class T, class Run, class Parts>
class session_trainer final : public rank_trainer {
 public:
  /// All outlive it.
  session_trainer(prepared_run& prepared, belay::rank& rank, Run& run)
      : run_(run),
        trainer_(prepared.line.run, rank, run, prepared.source),
        phases_(trainer_, prepared.line.run.cycle, prepared.eval_text) {}

  [[nodiscard]] rank_run& run() noexcept override { return run_; }
  [[nodiscard]] const options& settings() const noexcept override { return trainer_.settings(); }
  [[nodiscard]] const belay::mesh& mesh() const noexcept override { return trainer_.mesh(); }
  [[nodiscard]] std::span<const double> shared() const noexcept override { return trainer_.shared(); }
  [[nodiscard]] const belay::memory_report& memory() const noexcept override { return trainer_.memory(); }
  [[nodiscard]] phase_rounds& phases() noexcept override { return phases_; }

  std::optional<step_result> train(std::size_t number) override { return trainer_.train(number); }

  [[nodiscard]] std::span<const belay::executed_action> executed() const noexcept override {
    return trainer_.pipeline().executed();
  }
  void watch_actions(belay::action_observer& by) noexcept override { trainer_.pipeline().watch_actions(by); }

  void save_also(const char* name, run_state& state) override { trainer_.checkpoints().add(name, state); }
  belay::resumed_run open_checkpoints(belay::resume_from from) override { return trainer_.checkpoints().open(from); }
  [[nodiscard]] bool save_after(std::size_t step) override { return trainer_.checkpoints().after(step); }
  [[nodiscard]] std::optional<belay::file_error> take_checkpoint_problem() override {
    return trainer_.checkpoints().take_problem();
  }
  void close_checkpoints() override { trainer_.checkpoints().close(); }

  void import_weights(const model_import& from) override {
    train_moe::import_weights(trainer_.mesh(), trainer_.model(), from);
  }
  void export_weights(const std::string& folder, const model_config& config) override {
    train_moe::export_weights<T>(trainer_.mesh(), trainer_.model(), folder, config, settings().sequence);
  }

 private:
  using trainer_type = trainer<T, Run, Parts>;

  rank_run_of<Run> run_;
  trainer_type trainer_;
  phase_session<trainer_type> phases_;
};

/// The session of a rank with parameters and activations of T, that trains `Parts`.
template <class T, class Parts = model::trains_all, class Run>
void run_rank_as(prepared_run& prepared, belay::rank& rank, Run& run) {
  session_trainer<T, Run, Parts> trainer(prepared, rank, run);
  rank_body(prepared, trainer).run();
}

}  // namespace train_moe
