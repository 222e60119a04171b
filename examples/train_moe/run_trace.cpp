// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/run_trace.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "belay/comm/fingerprint.hpp"
#include "input/problem_text.hpp"
#include "train_moe/run_schedule.hpp"

namespace train_moe {

std::size_t spans_of(const options& run, const belay::traced_steps& steps) {
  constexpr std::size_t most = std::size_t{1} << 17;
  const belay::schedule::dynamic_table table = schedule_of(run);
  const std::size_t layers = most_layers_of_rank(run, table);
  const std::size_t steps_traced =
      static_cast<std::size_t>(std::min<std::uint64_t>(steps.last - steps.first + 1, most));
  const std::size_t of_step = 512 + table.micro_batches() * (64 * table.chunks() + 48 * (layers + 2));
  return std::min(most, std::min(most, of_step) * (steps_traced + 1));
}

run_trace::run_trace(prepared_run& prepared, rank_trainer& trainer)
    : steps_(prepared.line.trace_steps), rank_(belay::layout_rank(trainer.mesh().control())) {
  if (prepared.line.trace.empty()) return;
  rank_run& run = trainer.run();
  const std::span<belay::traced_span> spans = run.lease_spans(spans_of(prepared.line.run, steps_), "trace");
  const std::span<char> room = run.lease_text(belay::trace_merge::room_bytes, "trace");
  if (run.rehearsing()) return;
  log_.emplace(spans);
  room_ = spans.size();
  const auto& control = trainer.mesh().control();
  if (rank_ == 0) file_ = &*prepared.trace;
  // Ranks that are threads share the file, when the run fails.
  if (rank_ == 0 || prepared.line.backend == backend_kind::threads) file_of_failure_ = &*prepared.trace;
  const auto& place = trainer.mesh().coordinate();
  merge_.emplace(control,
                 "pp=" + std::to_string(place.pipeline) + " dp=" + std::to_string(place.data) +
                     " ep=" + std::to_string(place.expert),
                 room);
}

void run_trace::begin(rank_trainer& trainer, std::size_t step) {
  traces_ = log_ && steps_.has(step);
  if (!traces_) return;
  begin_ = log_->spans().size();
  trace_into(trainer, &*log_);
  step_ = log_->add({.name = "step", .number = static_cast<std::uint32_t>(step), .kind = belay::span_kind::step});
  if (step_ != nullptr) step_->begin_at(belay::span_log::now());
}

void run_trace::end(rank_trainer& trainer, std::size_t step, end_of_step how) {
  if (!log_ || !steps_.has(step)) return;
  if (step_ != nullptr) step_->end_at(belay::span_log::now());
  trace_into(trainer, nullptr);
  if (step == steps_.last && how == end_of_step::committed) write(trainer);
}

void run_trace::finish(rank_trainer& trainer) {
  if (log_) write(trainer);
}

void run_trace::fail(const std::exception& problem) {
  if (file_of_failure_ != nullptr)
    merge_->fail(input::problem_text(problem), static_cast<std::size_t>(rank_), *log_, *file_of_failure_);
}

void run_trace::trace_into(rank_trainer& trainer, belay::span_log* log) {
  if (trainer.rehearsing()) return;
  trainer.run().trace_into(log);
  trainer.mesh().world().trace_into(log);
  trainer.mesh().control().trace_into(log);
}

void run_trace::write(rank_trainer& trainer) {
  if (trainer.rehearsing() || std::exchange(written_, true)) return;
  const auto& control = trainer.mesh().control();
  trainer.run().synchronize();
  // Operations that were started have a turn before this.
  const bool started = std::ranges::any_of(
      log_->spans(), [](const belay::traced_span& each) { return each.lane == belay::span_lane::communication; });
  if (started) control.start_local(belay::operation::barrier, [] {}).wait();
  merge_->write(control, *log_, file_);
  if (const auto problem = file_ == nullptr ? std::nullopt : file_->take_problem())
    std::fprintf(stderr, "train_moe: the trace is not complete, training goes on: %s\n",
                 input::problem_text(*problem).c_str());
}

}  // namespace train_moe
