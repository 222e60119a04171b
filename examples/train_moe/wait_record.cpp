// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/wait_record.hpp"

#include <algorithm>

#include "belay/comm/reduction.hpp"
#include "belay/report/trace.hpp"

namespace train_moe {

void wait_record::open(rank_trainer& trainer) {
  rank_run& run = trainer.run();
  const auto ranks = static_cast<std::size_t>(trainer.settings().mesh.ranks());
  const std::size_t calls = std::min(most_calls, most_numbers / (arrivals::numbers * ranks));
  if (calls == 0 || ranks == 1) return;
  all_ = run.lease_numbers(arrivals::numbers * calls * ranks, "report");
  for (auto& log : logs_) {
    const std::span<belay::traced_span> room = run.lease_spans(2 * calls, "report");
    if (!run.rehearsing()) log.emplace(room);
  }
  if (run.rehearsing()) return;
  watches_ = belay::rank_clock<>(trainer.mesh().control()).shared();
  found_ = arrivals(ranks, calls, all_);
  if (trainer.mesh().control().rank() == 0) found_.make_room();
}

void wait_record::begin(rank_trainer& trainer, const run_trace& trace) {
  if (!watches_ || trainer.rehearsing()) return;
  now_ = 1 - now_;
  logs_[now_]->clear();
  own_ = !trace.traces() || trace.full();
  if (own_) trainer.mesh().control().trace_into(&*logs_[now_]);
}

void wait_record::end(rank_trainer& trainer, run_trace& trace) {
  if (!watches_ || trainer.rehearsing()) return;
  spans_[now_] = own_ ? logs_[now_]->spans() : trace.of_step();
  if (!own_) return;
  trainer.mesh().control().trace_into(nullptr);
  if (trace.traces()) trace.forget(spans_[now_].size());
}

void wait_record::gather(rank_trainer& trainer) {
  if (!watches_) return;
  std::fill(all_.begin(), all_.end(), 0.0);
  found_.note(spans_[1 - now_], static_cast<std::size_t>(trainer.mesh().control().rank()));
  trainer.mesh().control().all_reduce(all_, belay::sum);
  if (trainer.mesh().control().rank() == 0) found_.match();
}

}  // namespace train_moe
