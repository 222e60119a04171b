// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trace of --trace: each rank's log of the traced steps, in memory of the run, and the file, which rank 0 writes
// when they are over. Without the flag there is nothing but the calls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "belay/comm/fingerprint.hpp"
#include "belay/core/span_log.hpp"
#include "belay/device/tier.hpp"
#include "belay/report/trace.hpp"
#include "belay/step/call_spans.hpp"
#include "input/problem_text.hpp"
#include "train_moe/prepared_run.hpp"

namespace train_moe {

/// So many spans a rank has room for: what the steps of a trace have, with some of them replayed, and at most 10 MiB.
[[nodiscard]] inline std::size_t spans_of(const options& run, const belay::traced_steps& steps) {
  constexpr std::size_t most = std::size_t{1} << 17;
  const batch_shape shape(run);
  const std::size_t steps_traced =
      static_cast<std::size_t>(std::min<std::uint64_t>(steps.last - steps.first + 1, most));
  const std::size_t of_step = 512 + shape.micro_batches * (64 + 48 * (shape.layers + 2));
  return std::min(most, std::min(most, of_step) * (steps_traced + 1));
}

class run_trace {
 public:
  /// All ranks of the run make one, after the trainer. `prepared` outlives it.
  template <class Trainer>
  run_trace(prepared_run& prepared, Trainer& trainer)
      : steps_(prepared.line.trace_steps), rank_(belay::layout_rank(trainer.mesh().control())) {
    if (prepared.line.trace.empty()) return;
    auto& run = trainer.run();
    const auto spans =
        run.template lease<belay::traced_span>(belay::tier::host, spans_of(prepared.line.run, steps_), "trace");
    const auto room = run.template lease<char>(belay::tier::host, belay::trace_merge::room_bytes, "trace");
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
  run_trace(const run_trace&) = delete;  // streams and groups point to its log
  run_trace& operator=(const run_trace&) = delete;

  /// Before a step, and after it, whether it was committed or comes again. Collective over the world.
  template <class Trainer>
  void begin(Trainer& trainer, std::size_t step) {
    traces_ = log_ && steps_.has(step);
    if (!traces_) return;
    begin_ = log_->spans().size();
    trace_into(trainer, &*log_);
    step_ = log_->add({.name = "step", .number = static_cast<std::uint32_t>(step), .kind = belay::span_kind::step});
    if (step_ != nullptr) step_->begin_at(belay::span_log::now());
  }
  enum class end_of_step { committed, replayed };
  template <class Trainer>
  void end(Trainer& trainer, std::size_t step, end_of_step how) {
    if (!log_ || !steps_.has(step)) return;
    if (step_ != nullptr) step_->end_at(belay::span_log::now());
    trace_into(trainer, nullptr);
    if (step == steps_.last && how == end_of_step::committed) write(trainer);
  }
  /// Of the step that has begun last: whether it is traced; what the log has of it, as long as the trace lives.
  [[nodiscard]] bool traces() const noexcept { return traces_; }
  [[nodiscard]] std::span<const belay::traced_span> of_step() const noexcept { return log_->spans().subspan(begin_); }
  /// Whether nothing more has room; then who looks at a traced step itself counts what the log would have forgotten.
  [[nodiscard]] bool full() const noexcept { return log_->spans().size() == room_; }
  void forget(std::size_t spans) noexcept {
    for (; spans > 0; --spans) static_cast<void>(log_->add({}));
  }
  /// After the last step of the run, which may be before the last that is to be traced. Collective over the world.
  template <class Trainer>
  void finish(Trainer& trainer) {
    if (log_) write(trainer);
  }
  /// Of a run that fails, on each rank: what it has done until then. Nobody is waited for.
  void fail(const std::exception& problem) {
    if (file_of_failure_ != nullptr)
      merge_->fail(input::problem_text(problem), static_cast<std::size_t>(rank_), *log_, *file_of_failure_);
  }

 private:
  template <class Trainer>
  static void trace_into(Trainer& trainer, belay::span_log* log) {
    if (trainer.rehearsing()) return;
    auto& run = trainer.run();
    if constexpr (belay::traced_stream<typename Trainer::engine_type::stream_type>)
      run.engine().trace_into(log, &run.meters());
    if constexpr (requires { trainer.mesh().world().trace_into(log); }) trainer.mesh().world().trace_into(log);
    trainer.mesh().control().trace_into(log);
  }
  template <class Trainer>
  void write(Trainer& trainer) {
    if (trainer.rehearsing() || std::exchange(written_, true)) return;
    const auto& control = trainer.mesh().control();
    trainer.run().engine().synchronize();
    // What was started has a turn before this.
    const bool started = std::ranges::any_of(
        log_->spans(), [](const belay::traced_span& each) { return each.lane == belay::span_lane::communication; });
    if (started) control.start_local(belay::operation::barrier, [] {}).wait();
    merge_->write(control, *log_, file_);
    if (const auto problem = file_ == nullptr ? std::nullopt : file_->take_problem())
      std::fprintf(stderr, "train_moe: the trace is not complete, training goes on: %s\n",
                   input::problem_text(*problem).c_str());
  }

  belay::traced_steps steps_;
  int rank_;
  std::optional<belay::span_log> log_;
  std::optional<belay::trace_merge> merge_;
  belay::trace_file* file_ = nullptr;             // on rank 0
  belay::trace_file* file_of_failure_ = nullptr;  // where this rank can write to it alone
  belay::traced_span* step_ = nullptr;
  std::size_t room_ = 0;   // spans of the log
  std::size_t begin_ = 0;  // of the step that has begun last
  bool traces_ = false;    // it
  bool written_ = false;
};

}  // namespace train_moe
