// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trace of --trace: each rank's log of the traced steps, in memory of the run, and the file, which rank 0 writes
// when they are over. Without the flag there is nothing but the calls.
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <span>

#include "belay/core/span_log.hpp"
#include "belay/report/trace.hpp"
#include "train_moe/options.hpp"
#include "train_moe/prepared_run.hpp"
#include "train_moe/rank_trainer.hpp"

namespace train_moe {

/// So many spans a rank has room for: what the steps of a trace have, with some of them replayed, and at most 10 MiB.
[[nodiscard]] std::size_t spans_of(const options& run, const belay::traced_steps& steps);

class run_trace {
 public:
  /// All ranks of the run make one, after the trainer. `prepared` outlives it.
  run_trace(prepared_run& prepared, rank_trainer& trainer);
  run_trace(const run_trace&) = delete;  // streams and groups point to its log
  run_trace& operator=(const run_trace&) = delete;

  /// Before a step, and after it, whether it was committed or comes again. Collective over the world.
  void begin(rank_trainer& trainer, std::size_t step);
  enum class end_of_step { committed, replayed };
  void end(rank_trainer& trainer, std::size_t step, end_of_step how);
  /// Of the step that has begun last: whether it is traced; what the log has of it, as long as the trace lives.
  [[nodiscard]] bool traces() const noexcept { return traces_; }
  [[nodiscard]] std::span<const belay::traced_span> of_step() const noexcept { return log_->spans().subspan(begin_); }
  /// Whether nothing more has room; then who looks at a traced step itself counts what the log would have forgotten.
  [[nodiscard]] bool full() const noexcept { return log_->spans().size() == room_; }
  void forget(std::size_t spans) noexcept {
    for (; spans > 0; --spans) static_cast<void>(log_->add({}));
  }
  /// After the last step of the run, which may be before the last that is to be traced. Collective over the world.
  void finish(rank_trainer& trainer);
  /// Of a run that fails, on each rank: what it has done until then. Nobody is waited for.
  void fail(const std::exception& problem);

 private:
  static void trace_into(rank_trainer& trainer, belay::span_log* log);
  void write(rank_trainer& trainer);

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
