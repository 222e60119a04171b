// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The page of --report: written by the rank that prints, in memory of the run. On other ranks, and without the flag,
// there is nothing but the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/parallel/schedule.hpp"
#include "belay/report/page.hpp"
#include "belay/report/step_line.hpp"
#include "belay/train/plan.hpp"
#include "train_moe/prepared_run.hpp"
#include "train_moe/rank_run.hpp"
#include "train_moe/rank_trainer.hpp"
#include "train_moe/report_table.hpp"
#include "train_moe/run_trace.hpp"
#include "train_moe/step_record.hpp"
#include "train_moe/wait_record.hpp"

namespace train_moe {

/// Why a run has failed, as its page says it: without the line of the program that has found it, and of other files
/// without the path of the clone.
[[nodiscard]] std::string reason_of(const std::exception& problem);

class run_report {
 public:
  /// All ranks of the run make one. `prepared` and `run` outlive it.
  run_report(prepared_run& prepared, rank_run& run);
  run_report(const run_report&) = delete;  // the trainer's pipeline points into it
  run_report& operator=(const run_report&) = delete;

  /// Before the first step, on all ranks: notes what `trainer` has leased after each action of its pipeline, and when
  /// its ranks come to their communications.
  void watch(rank_trainer& trainer);
  /// Around each step, within its trace.
  void begin_step(rank_trainer& trainer, const run_trace& trace) { waits_.begin(trainer, trace); }
  void end_step(rank_trainer& trainer, run_trace& trace) { waits_.end(trainer, trace); }
  /// After each committed step, before add(). Collective over the world.
  void gather(rank_trainer& trainer) {
    record_.gather(trainer);
    waits_.gather(trainer);
  }

  /// The run goes on after `step`. Throws belay::file_error for samples that cannot be read.
  void resume_after(std::size_t step);
  /// A committed step as it was printed; `shared` is the table of all ranks.
  void add(const belay::step_report& printed, const step_result& result, std::span<const double> shared);
  void add_eval_loss(std::size_t step, double loss);
  void mark(belay::report_mark which, std::size_t step);
  /// The last page, of a run that is over, was asked to stop, or fails.
  void finish(std::string_view sample);
  void stop();
  void fail(const std::exception& problem);

 private:
  void begin(prepared_run& prepared, std::span<std::byte> room);
  void read_bytes(const belay::step_report& printed);
  void read_schedules(std::span<const double> shared);
  void say_problem();

  std::optional<report_table> table_;
  double learning_rate_ = 0;
  double peak_flops_ = 0;       // of all ranks; 0: not known
  double flops_per_token_ = 0;  // of the model
  bool wanted_ = false;
  const belay::plan* plan_ = nullptr;  // in a run
  std::size_t shown_rank_ = 0;
  std::vector<belay::report_row> rows_;
  std::vector<belay::report_tier_rows> tiers_;
  std::vector<std::uint64_t> live_;        // by row: after the step
  std::vector<belay::report_tier> bytes_;  // by tier
  std::vector<double> waiting_;            // by rank
  step_record record_;
  wait_record waits_;
  std::uint64_t before_ = 0;                                        // the step before this one, of this run
  std::unique_ptr<const belay::schedule::dynamic_table> schedule_;  // stays where it is
  std::optional<belay::schedule::timeline_player<belay::schedule::dynamic_table>> player_;
  std::size_t ranks_of_stage_ = 1;
  std::vector<belay::report_action> executed_, planned_;
  std::vector<belay::report_moment> moments_;
  std::vector<std::uint64_t> moment_live_;  // [moment][row]
  std::optional<belay::report_page> page_;
};

}  // namespace train_moe
