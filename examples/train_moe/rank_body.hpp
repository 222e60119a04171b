// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The body of one rank, over any backend, of any trainer, and in the rehearsal: its steps, checkpoints, evaluations and
// lines. Rank 0 prints and writes. Ranks share nothing but by messages.
#pragma once

#include <cstddef>
#include <exception>

#include "train_moe/prepared_run.hpp"
#include "train_moe/rank_trainer.hpp"
#include "train_moe/run_report.hpp"
#include "train_moe/run_state.hpp"
#include "train_moe/run_trace.hpp"

namespace train_moe {

class rank_body {
 public:
  /// Both outlive it.
  rank_body(prepared_run& prepared, rank_trainer& trainer);

  /// The whole run.
  void run();

 private:
  [[nodiscard]] const command_line& line() const noexcept { return prepared_->line; }
  [[nodiscard]] const belay::group& control() const { return trainer_->mesh().control(); }

  void run_to_the_end();
  // From the newest checkpoint, where the flags say so.
  void resume(summary& end);
  // After a step: true where the run was asked to stop, and is saved.
  [[nodiscard]] bool save(std::size_t step);
  void train(summary& end);
  // One step, and the largest pass that can be of each phase.
  void rehearse();
  // The steps of a probe, whose times all ranks have.
  void probe(probed_costs& into);
  // Of a tensor between two ranks of a pipeline that send memory of the host, the longest of all pipelines; 0 on a
  // device. Collective over the world.
  [[nodiscard]] double message_seconds() const;
  void evaluate(summary& end);
  void sample(summary& end);

  prepared_run* prepared_;
  bool first_;
  rank_trainer* trainer_;
  run_state state_;
  run_report report_;
  run_trace trace_;
  std::exception_ptr unsaved_;  // why the last checkpoint is not there
  std::size_t done_ = 0;        // steps of the run that this one goes on from
};

}  // namespace train_moe
