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

/// The body of one rank, over any backend. Rank 0 prints and writes. Ranks share nothing but by messages.
template <class Rank>
class rank_session {
 public:
  rank_session(prepared_run& prepared, Rank& rank)
      : prepared_(&prepared),
        first_(rank.number() == 0),
        trainer_(prepared.line.run, rank, prepared.source, prepared.plan) {}

  /// The whole run.
  void run() {
    summary end;
    if (prepared_->imported) import_weights(trainer_.machine(), *prepared_->imported);
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
  [[nodiscard]] const auto& control() { return trainer_.machine().mesh().control(); }

  void train(summary& end) {
    const options& run = line().run;
    double recent[10] = {};
    double timed_seconds = 0;
    for (std::size_t step = 1; step <= run.steps; ++step) {
      const auto begin = clock::now();
      const step_result result = trainer_.train(step);
      const double seconds = std::chrono::duration<double>(clock::now() - begin).count();
      if (!first_) continue;
      prepared_->printer.print(step, result, seconds, trainer_.shared());
      recent[step % 10] = result.loss;
      // The first step warms up; where it is the only one, it is all there is to time.
      if (step > 1 || run.steps == 1) timed_seconds += seconds;
      end.steps = step;
      end.final_loss = result.loss;
    }
    control().barrier();  // what follows allocates, and the last line counts allocations
    if (!first_ || run.steps == 0) return;
    const std::size_t timed = run.steps > 1 ? run.steps - 1 : 1;
    end.tokens_per_s = static_cast<double>(timed * tokens_per_step(run)) / timed_seconds;
    double sum = 0;
    for (double loss : recent) sum += loss;
    if (run.steps >= 10) end.mean_of_last = sum / 10;
  }

  void evaluate(summary& end) {
    const evaluation found = train_moe::evaluate<float>(trainer_.machine(), prepared_->eval_text, line().run.sequence);
    if (first_) end.eval_loss = found.mean();
  }

  void sample(summary& end) {
    const std::string text =
        train_moe::sample<float>(trainer_.machine(), "The ", 200, line().run.sequence, 0.8, line().run.seed);
    if (first_) end.sample = belay::printable_lines(text);
  }

  // Rank 0 opens, writes what all own, and commits.
  void export_model() {
    std::unique_ptr<model_export> folder;
    if (first_) folder = std::make_unique<model_export>(line().export_to, line().config, line().run.sequence);
    export_weights<float>(trainer_.machine(), folder.get());
    if (first_) folder->commit();
  }

  prepared_run* prepared_;
  bool first_;
  trainer<float, Rank> trainer_;
};

}  // namespace train_moe
