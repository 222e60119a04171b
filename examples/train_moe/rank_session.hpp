// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "belay/core/printable.hpp"
#include "train_moe/phase_session.hpp"
#include "train_moe/prepared_run.hpp"
#include "train_moe/rollout.hpp"
#include "train_moe/trainer.hpp"
#include "train_moe/weights.hpp"

namespace train_moe {

/// The body of one rank, over any backend and in the rehearsal. Rank 0 prints and writes. Ranks share nothing but by
/// messages.
template <class T, class Rank, class Run, class Parts>
class rank_session {
 public:
  rank_session(prepared_run& prepared, Rank& rank, Run& run)
      : prepared_(&prepared),
        first_(!run.rehearsing() && rank.number() == 0),
        run_(&run),
        trainer_(prepared.line.run, rank, run, prepared.source),
        phases_(trainer_, prepared.line.run.cycle, prepared.eval_text) {}

  /// The whole run.
  void run() {
    summary end;
    if (run_->rehearsing()) return rehearse();
    if (prepared_->imported) import_weights(trainer_.mesh(), trainer_.model(), *prepared_->imported);
    train(end);
    if (!line().eval.empty()) evaluate(end);
    if (line().run.steps > 0) sample(end);
    if (!line().export_to.empty()) export_model();
    control().barrier();  // all ranks have succeeded, which can now be printed
    if (first_) prepared_->finish(end);
  }

 private:
  using clock = std::chrono::steady_clock;
  using trainer_type = trainer<T, Rank, Run, Parts>;

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
      if (first_) {
        prepared_->printer.print(step, *result, seconds, trainer_.shared(), trainer_.memory());
        recent[step % 10] = result->loss;
        // The first step warms up; where it is the only one, it is all there is to time.
        if (step > 1 || run.steps == 1) timed_seconds += seconds;
        end.steps = step;
        end.final_loss = result->loss;
      }
      phases_.after(step, [this](std::string_view line) {
        if (first_) prepared_->printer.write_json(line);
      });
      begin = clock::now();
    }
    control().barrier();  // what follows allocates, and the last line counts allocations
    if (!first_ || run.steps == 0) return;
    const std::size_t timed = run.steps > 1 ? run.steps - 1 : 1;
    end.tokens_per_s = static_cast<double>(timed * tokens_per_step(run)) / timed_seconds;
    double sum = 0;
    for (double loss : recent) sum += loss;
    if (run.steps >= 10) end.mean_of_last = sum / 10;
  }

  // One step, and the largest pass that can be of each phase.
  void rehearse() {
    for (const std::size_t step : run_->steps(line().run.steps)) static_cast<void>(trainer_.train(step));
    phases_.rehearse();
  }

  void evaluate(summary& end) {
    const double loss = phases_.evaluate();
    if (first_) end.eval_loss = loss;
  }

  // One pipeline draws a text, the others take part.
  void sample(summary& end) {
    std::vector<std::size_t> lengths(static_cast<std::size_t>(trainer_.mesh().shape().data));
    lengths[0] = 200;
    rollout<trainer_type> drawn(trainer_, {.context = line().run.sequence}, lengths[0]);
    const std::span<const char> text = drawn.run(lengths, line().run.seed);
    if (first_) end.sample = belay::printable_lines({text.data(), text.size()});
  }

  void export_model() {
    export_weights<T>(trainer_.mesh(), trainer_.model(), line().export_to, line().config, line().run.sequence);
  }

  prepared_run* prepared_;
  bool first_;
  Run* run_;
  trainer_type trainer_;
  phase_session<trainer_type> phases_;
};

/// The session of a rank with parameters and activations of T, that trains `Parts`.
template <class T, class Parts = model::trains_all, class Rank, class Run>
void run_rank_as(prepared_run& prepared, Rank& rank, Run& run) {
  rank_session<T, Rank, Run, Parts>(prepared, rank, run).run();
}

/// The same in the type and with the frozen parts that the flags name.
template <class Rank, class Run>
void run_rank(prepared_run& prepared, Rank& rank, Run& run) {
  const options& chosen = prepared.line.run;
  if (chosen.dtype == belay::dtype::bf16) return run_rank_as<belay::bf16>(prepared, rank, run);
  switch (chosen.freeze) {
    case freeze_kind::none: return run_rank_as<float>(prepared, rank, run);
    case freeze_kind::attention: return run_rank_as<float, model::freezes_attention>(prepared, rank, run);
    case freeze_kind::experts: return run_rank_as<float, model::freezes_experts>(prepared, rank, run);
    case freeze_kind::parts: return run_rank_as<float, model::freezes_parts>(prepared, rank, run);
  }
}

}  // namespace train_moe
