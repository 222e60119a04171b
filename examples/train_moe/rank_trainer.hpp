// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank's trainer without the types of its model, for what a session does around its steps: that is compiled once, for
// all trainers. `rank_session.hpp` implements it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "belay/comm/mesh.hpp"
#include "belay/core/error.hpp"
#include "belay/parallel/pipeline/runner.hpp"
#include "belay/train/checkpoint.hpp"
#include "belay/train/memory_report.hpp"
#include "train_moe/options.hpp"
#include "train_moe/rank_run.hpp"

namespace train_moe {

class model_import;
class phase_rounds;
class run_state;
struct model_config;

/// The result of a step, the same on every rank.
struct step_result {
  double loss = 0;  // cross-entropy per target, nats
  double aux_loss = 0;
  double grad_norm = 0;  // before clipping
  std::size_t targets = 0;
  std::size_t replays = 0;  // how often the step was run again with more room
};

/// Every call is collective over the world unless its comment says otherwise.
class rank_trainer {
 public:
  rank_trainer() = default;
  rank_trainer(const rank_trainer&) = delete;
  rank_trainer& operator=(const rank_trainer&) = delete;

  /// The rank's run and its mesh, the numbers that ranks share and the memory of each, as of the last step; what the
  /// run does between its steps. None is collective.
  [[nodiscard]] virtual rank_run& run() noexcept = 0;
  [[nodiscard]] virtual const options& settings() const noexcept = 0;
  [[nodiscard]] virtual const belay::mesh& mesh() const noexcept = 0;
  [[nodiscard]] virtual std::span<const double> shared() const noexcept = 0;
  [[nodiscard]] virtual const belay::memory_report& memory() const noexcept = 0;
  [[nodiscard]] virtual phase_rounds& phases() noexcept = 0;
  [[nodiscard]] bool rehearsing() noexcept { return run().rehearsing(); }

  /// Trains step `number`, from 1. Nothing where it must be replayed: `run.steps` then gives the number again.
  virtual std::optional<step_result> train(std::size_t number) = 0;

  /// The rank's row of the schedule, as it was run last; `by` is told of each action. Not collective.
  [[nodiscard]] virtual std::span<const belay::executed_action> executed() const noexcept = 0;
  virtual void watch_actions(belay::action_observer& by) noexcept = 0;

  /// Of its checkpoints, as of `belay::checkpoints`: of `state` too, which outlives them.
  virtual void save_also(const char* name, run_state& state) = 0;
  virtual belay::resumed_run open_checkpoints(belay::resume_from from) = 0;
  [[nodiscard]] virtual bool save_after(std::size_t step) = 0;
  [[nodiscard]] virtual std::optional<belay::file_error> take_checkpoint_problem() = 0;
  virtual void close_checkpoints() = 0;

  /// The parameters from a folder, and to one.
  virtual void import_weights(const model_import& from) = 0;
  virtual void export_weights(const std::string& folder, const model_config& config) = 0;

 protected:
  ~rank_trainer() = default;
};

}  // namespace train_moe
