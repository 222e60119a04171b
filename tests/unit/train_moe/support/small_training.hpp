// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A tiny training by the example trainer on the ranks of any world, with an evaluation and a sample after it. Includes
// no doctest, so that nvcc can take it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "belay/core/span_log.hpp"
#include "belay/report/trace.hpp"
#include "belay/step/call_spans.hpp"
#include "belay/train/launch.hpp"
#include "train_moe/evaluate.hpp"
#include "train_moe/rollout.hpp"
#include "train_moe/trainer.hpp"

namespace small_training {

using namespace train_moe;

// Sequences of which some have fewer targets, so that micro-batches do not have equal numbers of them.
class numbers final : public batch_source {
 public:
  void sequence(std::size_t step, std::size_t micro_batch, std::size_t index, std::span<std::int32_t> tokens,
                std::span<std::int32_t> targets) const override {
    const std::size_t from = 5 * step + 3 * micro_batch + index;
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>((from + i * i) % 19);
    next_token_targets(tokens, targets);
    if (index == 0) targets[tokens.size() / 2] = model::ignored;
  }
};

inline options small_run(belay::axes mesh, belay::zero_stage zero) {
  options run;
  run.mesh = mesh;
  run.zero = zero;
  run.micro_batches = 4;
  run.micro_batch_size = 2;
  run.sequence = 5;
  run.steps = 3;
  run.bucket_bytes = 2048;
  run.model.vocab = 19;
  run.model.hidden = 16;
  run.model.expert_width = 24;
  run.model.layers = 2;
  run.model.heads = 2;
  run.model.kv_heads = 1;
  run.model.head_dim = 8;
  run.model.experts = 4;
  run.model.positions = 5;
  return run;
}

struct record {
  std::vector<double> losses, norms, shared;  // what ranks share of each step: losses, balance, experts' tokens
  double evaluated = 0;
  std::string text;
  std::vector<double> bubbles = {};  // of rank 0 in each step, which depend on clocks
  bool operator==(const record& other) const {
    return losses == other.losses && norms == other.norms && shared == other.shared && evaluated == other.evaluated &&
           text == other.text;
  }
};

// The second step of a rank as a trace, where there is a file for it.
class traced_step {
 public:
  template <class Trainer>
  traced_step(belay::trace_file* file, Trainer& of) : file_(file) {
    if (file == nullptr || of.rehearsing()) return;
    merge_.emplace(of.mesh().control(), "", text_);
  }
  template <class Trainer>
  void begin(Trainer& of, std::size_t step) {
    if constexpr (belay::traced_stream<typename Trainer::engine_type::stream_type>)
      if (merge_ && step == 2) {
        of.run().engine().trace_into(&log_, &of.run().meters());
        trace_groups(of, &log_);
      }
  }
  template <class Trainer>
  void end(Trainer& of, std::size_t step) {
    if constexpr (belay::traced_stream<typename Trainer::engine_type::stream_type>) {
      if (!merge_ || step != 2) return;
      of.run().engine().trace_into(nullptr);
      trace_groups(of, nullptr);
      merge_->write(of.mesh().control(), log_, of.mesh().control().rank() == 0 ? file_ : nullptr);
    }
  }

 private:
  template <class Trainer>
  static void trace_groups(Trainer& of, belay::span_log* log) {
    if constexpr (requires { of.mesh().world().trace_into(log); }) of.mesh().world().trace_into(log);
  }

  belay::trace_file* file_;
  std::vector<belay::traced_span> room_ = std::vector<belay::traced_span>(4000);
  belay::span_log log_{room_};
  std::vector<char> text_ = std::vector<char>(belay::trace_merge::room_bytes);
  std::optional<belay::trace_merge> merge_;
};

// `launch(body)` runs the body on all ranks, after its rehearsal. `told(record)` is called by rank 0 at the end of its
// body, of which another process sees nothing else.
template <class T, class Launch>
record trained(const options& run, const Launch& launch, belay::trace_file* trace = nullptr,
               const std::function<void(const record&)>& told = {}) {
  check(run);
  const numbers source;
  std::vector<std::int32_t> text;
  for (int i = 0; i < 23; ++i) text.push_back(i * i % 19);  // four windows, and a short one
  record out;
  launch([&](auto& rank, auto& self) {
    using trainer_type = trainer<T, std::remove_reference_t<decltype(self)>>;
    trainer_type one(run, rank, self, source);
    text_evaluation<trainer_type> evaluation(one, text, run.sequence);
    rollout<trainer_type> sample(one, {.prompt = "\1\2\3", .context = run.sequence}, 4);
    const belay::resumed_run from = one.checkpoints().open(run.checkpoint.from);
    traced_step traced(trace, one);
    for (const std::size_t step : self.steps(run.steps, static_cast<std::size_t>(from.step))) {
      traced.begin(one, step);
      const auto result = one.train(step);
      traced.end(one, step);
      if (self.rehearsing() || !result) continue;
      static_cast<void>(one.checkpoints().after(step));
      if (rank.number() != 0) continue;
      out.losses.push_back(result->loss);
      out.norms.push_back(result->grad_norm);
      out.bubbles.push_back(one.shared()[one.table().of_rank(0, report_table::bubble)]);
      const auto all = one.shared().first(one.table().of_rank(0, report_table::bubble));
      out.shared.insert(out.shared.end(), all.begin(), all.end());
    }
    one.checkpoints().close();
    if (self.rehearsing()) {
      evaluation.rehearse();
      return sample.rehearse();
    }
    const double loss = evaluation.run().mean_loss();
    std::vector<std::size_t> lengths(static_cast<std::size_t>(run.mesh.data));
    lengths[0] = 4;
    const std::span<const char> drawn = sample.run(lengths, 7);
    if (rank.number() != 0) return;
    out.evaluated = loss;
    out.text.assign(drawn.begin(), drawn.end());
    if (told) told(out);
  });
  return out;
}

}  // namespace small_training
