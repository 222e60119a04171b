// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/rank_body.hpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/span_log.hpp"
#include "belay/step/commit.hpp"
#include "train_moe/phase_rounds.hpp"
#include "train_moe/run_schedule.hpp"
#include "train_moe/schedule_costs.hpp"

namespace train_moe {

using clock = std::chrono::steady_clock;

// A rehearsed body that asks for its rank's number stands for no other rank.
rank_body::rank_body(prepared_run& prepared, rank_trainer& trainer)
    : prepared_(&prepared),
      first_(!trainer.rehearsing() && trainer.mesh().control().rank() == 0),
      trainer_(&trainer),
      state_(prepared.line, prepared.text),
      report_(prepared, trainer.run()),
      trace_(prepared, trainer) {
  trainer.save_also("train_moe", state_);
  report_.watch(trainer);
}

void rank_body::run() {
  if (trainer_->rehearsing()) return rehearse();
  if (prepared_->probed != nullptr) return probe(*prepared_->probed);
  try {
    run_to_the_end();
  } catch (const std::exception& problem) {
    report_.fail(problem);
    trace_.fail(problem);
    throw;
  }
}

void rank_body::run_to_the_end() {
  summary end;
  if (prepared_->imported) trainer_->import_weights(*prepared_->imported);
  resume(end);
  train(end);
  if (!end.stopped) {
    if (line().run.checkpoint.stop != nullptr) line().run.checkpoint.stop->end();
    if (!line().eval.empty()) evaluate(end);
    if (line().run.steps > 0) sample(end);
    if (!line().export_to.empty()) trainer_->export_weights(line().export_to, line().config);
  }
  if (unsaved_) std::rethrow_exception(unsaved_);
  control().barrier();  // all ranks have succeeded, which can now be printed
  if (first_) prepared_->finish(end);
  if (end.stopped)
    report_.stop();
  else
    report_.finish(end.sample);
}

void rank_body::resume(summary& end) {
  const checkpoint_settings& saved = line().run.checkpoint;
  const belay::resumed_run from = trainer_->open_checkpoints(saved.from);
  done_ = static_cast<std::size_t>(from.step);
  state_.set_step(done_);
  trainer_->phases().continue_after(done_);
  for (const std::uint64_t step : from.swept)
    prepared_->printer.say(belay::printable(saved.folder) + ": removed what was saved of step " + std::to_string(step) +
                           ", which has no manifest: it was never committed\n");
  for (const belay::file_error& each : from.left)
    std::fprintf(stderr, "train_moe: %s\n", belay::printable_what(each).c_str());
  if (!first_ || saved.from == belay::resume_from::nothing) return;
  report_.resume_after(done_);
  end.resumed_from = done_;
  prepared_->printer.write_events([this](belay::event_file& events) { events.resume_at(done_ + 1); });
  prepared_->printer.say(done_ > 0 ? "resumed from " + belay::printable(from.folder) + "\n"
                                   : belay::printable(saved.folder) + " has no checkpoint: the run starts afresh\n");
}

bool rank_body::save(std::size_t step) {
  state_.set_step(step);
  const bool stops = trainer_->save_after(step);
  const std::size_t every = line().run.checkpoint.every;
  if (stops || (every > 0 && step % every == 0)) report_.mark(belay::report_mark::checkpoint, step);
  if (const auto problem = first_ ? trainer_->take_checkpoint_problem() : std::nullopt)
    std::fprintf(stderr, "train_moe: checkpoints, training goes on: %s\n", belay::printable_what(*problem).c_str());
  return stops;
}

void rank_body::train(summary& end) {
  const options& run = line().run;
  double recent[10] = {};
  double timed_seconds = 0;
  auto begin = clock::now();
  trainer_->run().each_step(run.steps, done_, [&](std::size_t step) {
    trace_.begin(*trainer_, step);
    report_.begin_step(*trainer_, trace_);
    const auto result = trainer_->train(step);
    report_.end_step(*trainer_, trace_);
    trace_.end(*trainer_, step, result ? run_trace::end_of_step::committed : run_trace::end_of_step::replayed);
    if (!result) {  // it comes again with more room, or the run ends
      if (trainer_->run().last_end() == belay::end_of_step::refused) report_.mark(belay::report_mark::refusal, step);
      return true;
    }
    const double seconds = std::chrono::duration<double>(clock::now() - begin).count();
    report_.gather(*trainer_);
    if (first_) {
      const belay::step_report printed =
          prepared_->printer.print(step, *result, seconds, trainer_->shared(), trainer_->memory());
      report_.add(printed, *result, trainer_->shared());
      recent[step % 10] = result->loss;
      // The first step warms up; where it is the only one, it is all there is to time.
      if (step > done_ + 1 || run.steps == done_ + 1) timed_seconds += seconds;
      end.steps = step;
      end.final_loss = result->loss;
    }
    const std::optional<double> evaluated = trainer_->phases().after(
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
    if (end.stopped = save(step); end.stopped) return false;
    begin = clock::now();
    return true;
  });
  trace_.finish(*trainer_);
  // Steps that were trained are not lost with the last checkpoint.
  try {
    trainer_->close_checkpoints();
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

void rank_body::rehearse() {
  trainer_->run().each_step(line().run.steps, 0, [this](std::size_t step) {
    static_cast<void>(trainer_->train(step));
    return true;
  });
  trainer_->phases().rehearse();
}

void rank_body::probe(probed_costs& into) {
  std::vector<belay::traced_span> room(spans_of(line().run, {1, 1}));  // times of a device are those of a trace
  belay::span_log log(room);
  const auto stages = static_cast<std::size_t>(line().run.mesh.pipeline);  // one a rank
  const report_table table(line().run, stages);
  measured_costs measured(stages);
  measured.set_message(message_seconds());
  trainer_->run().each_step(line().run.steps, 0, [&](std::size_t step) {
    log.clear();
    trainer_->run().trace_into(&log);
    const bool committed = trainer_->train(step).has_value();
    if (committed) measured.add({&table, trainer_->shared(), ranks_of_stage(line().run)});
    trainer_->run().synchronize();
    trainer_->run().trace_into(nullptr);
    return true;
  });
  if (const auto text = measured.text()) into.set(*text);
  control().barrier();
}

double rank_body::message_seconds() const {
  const belay::group& ranks = trainer_->mesh().pipeline();
  double least = 0;
  if (ranks.size() > 1 && ranks.rank() < 2 && ranks.device() == nullptr) {
    const std::size_t number = line().run.dtype == belay::dtype::bf16 ? sizeof(belay::bf16) : sizeof(float);
    std::vector<std::byte> tensor(batch_shape(line().run).rows() * line().run.model.hidden * number);
    const int peer = 1 - ranks.rank();
    const belay::p2p sent[] = {belay::p2p::send(peer, std::span(tensor))};
    const belay::p2p received[] = {belay::p2p::receive(peer, std::span(tensor))};
    for (int round = 0; round < 6; ++round) {
      const auto begin = clock::now();
      ranks.exchange(peer == 1 ? sent : received);
      ranks.exchange(peer == 1 ? received : sent);
      const double both = std::chrono::duration<double>(clock::now() - begin).count();
      if (round == 0 || both / 2 < least) least = both / 2;
    }
  }
  control().all_reduce(std::span(&least, 1), belay::maximum);
  return least;
}

void rank_body::evaluate(summary& end) {
  const double loss = trainer_->phases().evaluate();
  if (first_) end.eval_loss = loss;
  report_.add_eval_loss(line().run.steps, loss);
}

void rank_body::sample(summary& end) {
  const std::span<const char> text = trainer_->phases().sample(200, line().run.seed);
  if (first_) end.sample = belay::printable_lines({text.data(), text.size()});
}

}  // namespace train_moe
