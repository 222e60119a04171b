// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks wait for each other in the communications of a step: each notes when it comes to them, all exchange that
// after the step, and who came last is the one that the others waited for. Only where all ranks have one clock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "belay/comm/reduction.hpp"
#include "belay/core/span_log.hpp"
#include "belay/device/tier.hpp"
#include "belay/report/page.hpp"
#include "belay/report/trace.hpp"
#include "train_moe/arrivals.hpp"
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
  template <class Trainer>
  void open(Trainer& trainer) {
    auto& run = trainer.run();
    const auto ranks = static_cast<std::size_t>(trainer.settings().mesh.ranks());
    const std::size_t calls = std::min(most_calls, most_numbers / (arrivals::numbers * ranks));
    if (calls == 0 || ranks == 1) return;
    all_ = run.template lease<double>(belay::tier::host, arrivals::numbers * calls * ranks, "report");
    for (auto& log : logs_) {
      const auto room = run.template lease<belay::traced_span>(belay::tier::host, 2 * calls, "report");
      if (!run.rehearsing()) log.emplace(room);
    }
    if (run.rehearsing()) return;
    watches_ = belay::rank_clock<>(trainer.mesh().control()).shared();
    found_ = arrivals(ranks, calls, all_);
    if (trainer.mesh().control().rank() == 0) found_.make_room();
  }

  /// Around each step. A trace that has begun before has the step's communications, and lends them, for as long as it
  /// has room.
  template <class Trainer>
  void begin(const Trainer& trainer, const run_trace& trace) {
    if (!watches_ || trainer.rehearsing()) return;
    now_ = 1 - now_;
    logs_[now_]->clear();
    own_ = !trace.traces() || trace.full();
    if (own_) trainer.mesh().control().trace_into(&*logs_[now_]);
  }
  template <class Trainer>
  void end(const Trainer& trainer, run_trace& trace) {
    if (!watches_ || trainer.rehearsing()) return;
    spans_[now_] = own_ ? logs_[now_]->spans() : trace.of_step();
    if (!own_) return;
    trainer.mesh().control().trace_into(nullptr);
    if (trace.traces()) trace.forget(spans_[now_].size());
  }
  /// After a committed step: of the one before, because only of that everything that was started is over. Collective
  /// over the world.
  template <class Trainer>
  void gather(const Trainer& trainer) {
    if (!watches_) return;
    std::fill(all_.begin(), all_.end(), 0.0);
    found_.note(spans_[1 - now_], static_cast<std::size_t>(trainer.mesh().control().rank()));
    trainer.mesh().control().all_reduce(all_, belay::sum);
    if (trainer.mesh().control().rank() == 0) found_.match();
  }

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
