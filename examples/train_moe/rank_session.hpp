// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string_view>

#include "belay/core/printable.hpp"
#include "belay/step/commit.hpp"
#include "train_moe/phase_session.hpp"
#include "train_moe/prepared_run.hpp"
#include "train_moe/run_report.hpp"
#include "train_moe/run_state.hpp"
#include "train_moe/run_trace.hpp"
#include "train_moe/trainer.hpp"
#include "train_moe/weights.hpp"

namespace train_moe {

/// The body of one rank, over any backend and in the rehearsal. Rank 0 prints and writes. Ranks share nothing but by
/// messages.
template <class T, class Run, class Parts>
class rank_session {
 public:
  rank_session(prepared_run& prepared, belay::rank& rank, Run& run)
      : prepared_(&prepared),
        first_(!run.rehearsing() && rank.number() == 0),
        run_(&run),
        trainer_(prepared.line.run, rank, run, prepared.source),
        phases_(trainer_, prepared.line.run.cycle, prepared.eval_text),
        state_(prepared.line, prepared.text),
        report_(prepared, run),
        trace_(prepared, trainer_) {
    trainer_.checkpoints().add("train_moe", state_);
    report_.watch(trainer_);
  }

  /// The whole run.
  void run() {
    if (run_->rehearsing()) return rehearse();
    try {
      run_to_the_end();
    } catch (const std::exception& problem) {
      report_.fail(problem);
      trace_.fail(problem);
      throw;
    }
  }

 private:
  using clock = std::chrono::steady_clock;
  using trainer_type = trainer<T, Run, Parts>;

  [[nodiscard]] const command_line& line() const noexcept { return prepared_->line; }
  [[nodiscard]] const auto& control() { return trainer_.mesh().control(); }

  void run_to_the_end() {
    summary end;
    if (prepared_->imported) import_weights(trainer_.mesh(), trainer_.model(), *prepared_->imported);
    resume(end);
    train(end);
    if (!end.stopped) {
      if (line().run.checkpoint.stop != nullptr) line().run.checkpoint.stop->end();
      if (!line().eval.empty()) evaluate(end);
      if (line().run.steps > 0) sample(end);
      if (!line().export_to.empty()) export_model();
    }
    if (unsaved_) std::rethrow_exception(unsaved_);
    control().barrier();  // all ranks have succeeded, which can now be printed
    if (first_) prepared_->finish(end);
    if (end.stopped)
      report_.stop();
    else
      report_.finish(end.sample);
  }

  // From the newest checkpoint, where the flags say so.
  void resume(summary& end) {
    const checkpoint_settings& saved = line().run.checkpoint;
    const belay::resumed_run from = trainer_.checkpoints().open(saved.from);
    done_ = static_cast<std::size_t>(from.step);
    state_.set_step(done_);
    phases_.continue_after(done_);
    for (const std::uint64_t step : from.swept)
      prepared_->printer.say(belay::printable(saved.folder) + ": removed what was saved of step " +
                             std::to_string(step) + ", which has no manifest: it was never committed\n");
    for (const belay::file_error& each : from.left)
      std::fprintf(stderr, "train_moe: %s\n", belay::printable_what(each).c_str());
    if (!first_ || saved.from == belay::resume_from::nothing) return;
    report_.resume_after(done_);
    end.resumed_from = done_;
    prepared_->printer.write_events([this](belay::event_file& events) { events.resume_at(done_ + 1); });
    prepared_->printer.say(done_ > 0 ? "resumed from " + belay::printable(from.folder) + "\n"
                                     : belay::printable(saved.folder) + " has no checkpoint: the run starts afresh\n");
  }

  // After a step: true where the run was asked to stop, and is saved.
  [[nodiscard]] bool save(std::size_t step) {
    state_.set_step(step);
    const bool stops = trainer_.checkpoints().after(step);
    const std::size_t every = line().run.checkpoint.every;
    if (stops || (every > 0 && step % every == 0)) report_.mark(belay::report_mark::checkpoint, step);
    if (const auto problem = first_ ? trainer_.checkpoints().take_problem() : std::nullopt)
      std::fprintf(stderr, "train_moe: checkpoints, training goes on: %s\n", belay::printable_what(*problem).c_str());
    return stops;
  }

  void train(summary& end) {
    const options& run = line().run;
    double recent[10] = {};
    double timed_seconds = 0;
    auto begin = clock::now();
    for (const std::size_t step : run_->steps(run.steps, done_)) {
      trace_.begin(trainer_, step);
      report_.begin_step(trainer_, trace_);
      const auto result = trainer_.train(step);
      report_.end_step(trainer_, trace_);
      trace_.end(trainer_, step, result ? run_trace::end_of_step::committed : run_trace::end_of_step::replayed);
      if (!result) {  // it comes again with more room, or the run ends
        if (run_->engine().last_end() == belay::end_of_step::refused) report_.mark(belay::report_mark::refusal, step);
        continue;
      }
      const double seconds = std::chrono::duration<double>(clock::now() - begin).count();
      report_.gather(trainer_);
      if (first_) {
        const belay::step_report printed =
            prepared_->printer.print(step, *result, seconds, trainer_.shared(), trainer_.memory());
        report_.add(printed, *result, trainer_.shared());
        recent[step % 10] = result->loss;
        // The first step warms up; where it is the only one, it is all there is to time.
        if (step > done_ + 1 || run.steps == done_ + 1) timed_seconds += seconds;
        end.steps = step;
        end.final_loss = result->loss;
      }
      const std::optional<double> evaluated = phases_.after(
          step,
          [this](std::string_view line) {
            if (first_) prepared_->printer.write_json(line);
          },
          [this](std::string_view line) {
            if (first_) prepared_->printer.say(line);
          });
      if (run.cycle.ends_with(step)) report_.mark(belay::report_mark::phase, step);
      if (evaluated) report_.add_eval_loss(step, *evaluated);
      if (evaluated && first_)
        prepared_->printer.write_events(
            [&](belay::event_file& events) { events.scalar("eval_loss", *evaluated).write(step); });
      if (end.stopped = save(step); end.stopped) break;
      begin = clock::now();
    }
    trace_.finish(trainer_);
    // What was trained is not lost with its last checkpoint.
    try {
      trainer_.checkpoints().close();
    } catch (const belay::file_error&) {  // on all ranks
      unsaved_ = std::current_exception();
    }
    control().barrier();  // what follows allocates, and the last line counts allocations
    if (!first_ || end.steps <= done_) return;
    const std::size_t trained = end.steps - done_;
    const std::size_t timed = trained > 1 ? trained - 1 : 1;
    if (timed_seconds > 0) end.tokens_per_s = static_cast<double>(timed * tokens_per_step(run)) / timed_seconds;
    double sum = 0;
    for (double loss : recent) sum += loss;
    if (trained >= 10) end.mean_of_last = sum / 10;
  }

  // One step, and the largest pass that can be of each phase.
  void rehearse() {
    for (const std::size_t step : run_->steps(line().run.steps)) static_cast<void>(trainer_.train(step));
    phases_.rehearse();
  }

  void evaluate(summary& end) {
    const double loss = phases_.evaluate();
    if (first_) end.eval_loss = loss;
    report_.add_eval_loss(line().run.steps, loss);
  }

  void sample(summary& end) {
    const std::span<const char> text = phases_.sample(200, line().run.seed);
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
  run_state state_;
  run_report report_;
  run_trace trace_;
  std::exception_ptr unsaved_;  // why the last checkpoint is not there
  std::size_t done_ = 0;        // steps of the run that this one goes on from
};

/// The session of a rank with parameters and activations of T, that trains `Parts`.
template <class T, class Parts = model::trains_all, class Run>
void run_rank_as(prepared_run& prepared, belay::rank& rank, Run& run) {
  rank_session<T, Run, Parts>(prepared, rank, run).run();
}

}  // namespace train_moe
