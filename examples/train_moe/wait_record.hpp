// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks wait for each other in the communications of a step: each notes when it comes to them, all exchange that
// after the step, and who came last is the one that the others waited for. Only where all ranks have one clock.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "belay/core/span_log.hpp"
#include "belay/report/page.hpp"
#include "train_moe/arrivals.hpp"
#include "train_moe/rank_trainer.hpp"
#include "train_moe/run_trace.hpp"

namespace train_moe {

class wait_record {
 public:
  static constexpr std::size_t most_numbers = 16384;  // that ranks exchange: of a step the first communications
  static constexpr std::size_t most_calls = 1024;     // of a rank

  wait_record() = default;
  wait_record(const wait_record&) = delete;  // groups point to its log
  wait_record& operator=(const wait_record&) = delete;

  /// On all ranks, in memory of the run. Collective, after the trainer has made its mesh.
  void open(rank_trainer& trainer);

  /// Around each step. A trace that has begun before has the step's communications, and lends them, for as long as it
  /// has room.
  void begin(rank_trainer& trainer, const run_trace& trace);
  void end(rank_trainer& trainer, run_trace& trace);
  /// After a committed step: of the one before, because only of that everything that was started is over. Collective
  /// over the world.
  void gather(rank_trainer& trainer);

  /// On rank 0: of that step, by kind of communication, that with most waiting first. Valid until the next gather.
  [[nodiscard]] std::span<const belay::report_wait> waits() const noexcept { return found_.waits(); }

 private:
  bool watches_ = false;
  std::span<double> all_;
  arrivals found_;
  std::optional<belay::span_log> logs_[2];        // of this step, and of the one before
  std::span<const belay::traced_span> spans_[2];  // theirs, or those of a trace
  std::size_t now_ = 0;
  bool own_ = false;  // of this step: its own log, not that of a trace
};

}  // namespace train_moe
