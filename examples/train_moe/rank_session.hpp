// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "belay/core/printable.hpp"
#include "train_moe/evaluate.hpp"
#include "train_moe/prepared_run.hpp"
#include "train_moe/trainer.hpp"
#include "train_moe/weights.hpp"

namespace train_moe {

/// The body of one rank, over any backend and in the rehearsal. Rank 0 prints and writes. Ranks share nothing but by
/// messages.
template <class T, class Rank, class Run>
class rank_session {
 public:
  rank_session(prepared_run& prepared, Rank& rank, Run& run)
      : prepared_(&prepared),
        first_(!run.rehearsing() && rank.number() == 0),
        run_(&run),
        trainer_(prepared.line.run, rank, run, prepared.source) {}

  /// The whole run.
  void run() {
    summary end;
    if (run_->rehearsing()) return rehearse();
    if (prepared_->imported) import_weights(trainer_.model(), *prepared_->imported);
    train(end);
    if (!prepared_->eval_text.empty()) evaluate(end);
    if (line().run.steps > 0) sample(end);
    if (!line().export_to.empty()) export_model();
    control().barrier();  // all ranks have succeeded, which can now be printed
    if (first_) prepared_->finish(end);
  }

 private:
  using clock = std::chrono::steady_clock;

  [[nodiscard]] const command_line& line() const noexcept { return prepared_->line; }
  [[nodiscard]] const auto& control() { return trainer_.mesh().control(); }

  void train(summary& end) {
    const options& run = line().run;
    double recent[10] = {};
    double timed_seconds = 0;
    auto begin = clock::now();
    for (const std::size_t step : run_->steps(run.steps)) {
      const auto result = trainer_.train(step);
      if (!result) continue;  // it comes again, with more room
      const double seconds = std::chrono::duration<double>(clock::now() - begin).count();
      begin = clock::now();
      if (!first_) continue;
      prepared_->printer.print(step, *result, seconds, trainer_.shared(), trainer_.memory());
      recent[step % 10] = result->loss;
      // The first step warms up; where it is the only one, it is all there is to time.
      if (step > 1 || run.steps == 1) timed_seconds += seconds;
      end.steps = step;
      end.final_loss = result->loss;
    }
    control().barrier();  // what follows allocates, and the last line counts allocations
    if (!first_ || run.steps == 0) return;
    const std::size_t timed = run.steps > 1 ? run.steps - 1 : 1;
    end.tokens_per_s = static_cast<double>(timed * tokens_per_step(run)) / timed_seconds;
    double sum = 0;
    for (double loss : recent) sum += loss;
    if (run.steps >= 10) end.mean_of_last = sum / 10;
  }

  // One step and the largest evaluation that can be.
  void rehearse() {
    for (const std::size_t step : run_->steps(line().run.steps)) static_cast<void>(trainer_.train(step));
    rehearse_evaluation(trainer_, line().run.sequence);
  }

  void evaluate(summary& end) {
    const auto found = train_moe::evaluate(trainer_, prepared_->eval_text, line().run.sequence);
    if (first_) end.eval_loss = found.mean_loss();
  }

  void sample(summary& end) {
    const std::string text = train_moe::sample(trainer_, "The ", 200, line().run.sequence, 0.8, line().run.seed);
    if (first_) end.sample = belay::printable_lines(text);
  }

  // Rank 0 opens, writes what all own, and commits.
  void export_model() {
    std::unique_ptr<model_export> folder;
    if (first_)
      folder = std::make_unique<model_export>(line().export_to, line().config, line().run.sequence, belay::dtype_of<T>);
    export_weights<T>(trainer_.mesh(), trainer_.model(), folder.get());
    if (first_) folder->commit();
  }

  prepared_run* prepared_;
  bool first_;
  Run* run_;
  trainer<T, Rank, Run> trainer_;
};

/// The session of a rank with parameters and activations of T.
template <class T, class Rank, class Run>
void run_rank_as(prepared_run& prepared, Rank& rank, Run& run) {
  rank_session<T, Rank, Run>(prepared, rank, run).run();
}

/// The same in the type that the flags name.
template <class Rank, class Run>
void run_rank(prepared_run& prepared, Rank& rank, Run& run) {
  if (prepared.line.run.dtype == belay::dtype::bf16) return run_rank_as<belay::bf16>(prepared, rank, run);
  run_rank_as<float>(prepared, rank, run);
}

}  // namespace train_moe
