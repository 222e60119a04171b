// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How long a step would take by a model of three constants, to compare settings with each other: `alpha` seconds a
// message, `beta` seconds a byte, `flops` a second of a rank. And the share of it that stages wait.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "belay/parallel/schedule.hpp"
#include "tools/belay_plan/activations.hpp"
#include "tools/belay_plan/architecture.hpp"
#include "tools/belay_plan/setting.hpp"
#include "tools/belay_plan/states.hpp"

namespace belay_plan {

struct time_constants {
  double alpha = 1e-5;      // seconds a message
  double bandwidth = 50e9;  // bytes a second of a rank, over links and between tiers: 1 / beta
  double flops = 400e12;    // a second of a rank, as layers reach it
};

/// Seconds of one micro-batch on a stage.
struct stage_time {
  double forward = 0, backward = 0;  // computing, and what nothing hides: experts' rows, tensors to the next stage
  double hidden = 0;                 // gathers, reductions and copies, which run beside that

  [[nodiscard]] double all() const noexcept { return std::max(forward + backward, hidden); }
};

/// Seconds of a step, and where they go.
struct step_time {
  double pipeline = 0;  // all micro-batches through all stages
  double states = 0;    // after them: gradients that are reduced once a step, parameters that are gathered, offloaded
                        // state

  [[nodiscard]] double all() const noexcept { return pipeline + states; }
};

/// The share of the pipeline's time in which a stage does not compute, mean over stages.
struct bubble_share {
  double equal_stages = 0;  // where all take the same time: (p - 1) / (m + p - 1)
  double by_time = 0;       // in the times of the model
};

class time_model {
 public:
  time_model(const architecture& model, const setting& run, const time_constants& with) noexcept
      : model_(&model), run_(&run), with_(with), kept_(model, run) {}

  [[nodiscard]] stage_time of_stage(count stage) const {
    const auto [first, size] = layers_of_stage(model_->layers, run_->stages(), stage);
    double forward = 0, again = 0, kept = 0;
    count mixtures = 0;
    for (count layer = first; layer < first + size; ++layer) {
      forward += flops_of(layer);
      again += flops_again(layer);
      kept += kept_.kept(layer);
      mixtures += model_->feed_forward(layer).experts > 0 ? 1U : 0U;
    }
    const bool last = stage + 1 == run_->stages();
    if (last) forward += 2 * real(run_->rows()) * real(model_->vocabulary) * real(model_->hidden);
    const double send = run_->stages() > 1 ? with_.alpha + kept_.sent() / with_.bandwidth : 0;
    const double rows = real(mixtures) * 2 * exchange();
    const bool twice = run_->recompute == recompute_kind::full;
    stage_time out;
    out.forward = forward / with_.flops + rows + send;
    out.backward = (2 * forward + again) / with_.flops + rows * (twice ? 2 : 1) + send;
    out.hidden = hidden(stage, kept);
    return out;
  }

  [[nodiscard]] std::vector<stage_time> of_stages() const {
    std::vector<stage_time> all;
    for (count stage = 0; stage < run_->stages(); ++stage) all.push_back(of_stage(stage));
    return all;
  }

  /// The slowest stage sets the pace; the first micro-batch goes through all of them.
  [[nodiscard]] step_time of_step() const {
    step_time out;
    double slowest = 0;
    for (const stage_time& each : of_stages()) {
      out.pipeline += each.all();
      slowest = std::max(slowest, each.all());
    }
    out.pipeline += real(run_->micro_batches() - 1) * slowest;
    for (count stage = 0; stage < run_->stages(); ++stage) out.states = std::max(out.states, after(stage));
    return out;
  }

  /// The schedule as it is played; one of more than 65,536 micro-batches times stages by its formula.
  [[nodiscard]] bubble_share bubble() const {
    const auto stages = static_cast<std::size_t>(run_->stages()),
               size = static_cast<std::size_t>(run_->micro_batches());
    const double by_formula = static_cast<double>(stages - 1) / static_cast<double>(size + stages - 1);
    if (stages * size > 65'536) return {by_formula, by_formula};
    const auto table = run_->schedule == schedule_kind::gpipe ? belay::schedule::gpipe(stages, size)
                                                              : belay::schedule::one_f_one_b(stages, size);
    belay::schedule::timeline_player<belay::schedule::dynamic_table> player(table);
    std::vector<double> forward(stages, 1), backward(stages, 2);
    bubble_share out;
    out.equal_stages = player.play(forward, backward).idle();
    for (std::size_t stage = 0; stage < stages; ++stage) {
      const stage_time each = of_stage(stage);
      forward[stage] = each.forward;
      backward[stage] = each.all() - each.forward;
    }
    out.by_time = player.play(forward, backward).idle();
    return out;
  }

 private:
  [[nodiscard]] static double real(count value) noexcept { return static_cast<double>(value); }

  // Scores and what is summed with them; half of both is masked.
  [[nodiscard]] double flops_of_attention() const noexcept {
    const attention_part& part = model_->attention;
    return real(run_->rows()) *
           (2 * real(part.parameters) + real(run_->sequence) * (real(part.query_width) + real(part.context_width)));
  }
  [[nodiscard]] double flops_of(count layer) const noexcept {
    const count visited =
        visited_by_all(*model_, layer) + model_->feed_forward(layer).experts_per_token * expert_parameters(*model_);
    return flops_of_attention() + 2 * real(run_->rows()) * real(visited);
  }
  [[nodiscard]] double flops_again(count layer) const noexcept {
    switch (run_->recompute) {
      case recompute_kind::none: return 0;
      case recompute_kind::selective: return flops_of_attention();
      case recompute_kind::full: return flops_of(layer);
    }
    return 0;
  }
  // Rows to experts, or back.
  [[nodiscard]] double exchange() const noexcept {
    const double ranks = real(run_->expert_ranks());
    if (ranks < 2) return 0;
    const double bytes =
        real(run_->rows()) * real(model_->mixture.experts_per_token) * real(model_->hidden) * real(run_->value_bytes());
    return with_.alpha + bytes * (ranks - 1) / ranks / with_.bandwidth;
  }
  // A gather or a reduction of `bytes` over those that divide parameters, or over groups of them.
  [[nodiscard]] double collective(double bytes) const noexcept {
    return collective(bytes, run_->shards() * run_->expert_ranks());
  }
  [[nodiscard]] double collective(double bytes, count among) const noexcept {
    const double ranks = real(among);
    return ranks < 2 ? 0 : with_.alpha * std::ceil(std::log2(ranks)) + bytes * (ranks - 1) / ranks / with_.bandwidth;
  }

  [[nodiscard]] double hidden(count stage, double kept) const {
    const std::vector<parameter_block> blocks = blocks_of(*model_, *run_, stage);
    const state_bytes states = states_of(blocks, *run_, store_types(run_->dtype));
    double moved = 0, copied = 0;
    for (const parameter_block& each : blocks) {
      const double bytes = real(each.all() * run_->value_bytes());
      if (run_->zero >= 3 && run_->gathers == gathers_kind::use)
        moved += 2 * collective(bytes);                 // for the forward, and for the backward
      if (run_->zero >= 2) moved += collective(bytes);      // gradients are as wide on the wire as values
    }
    const auto away = [](belay::tier in) { return in != belay::tier::device; };
    if (away(run_->offload.parameters)) copied += 2 * real(states.values);
    if (away(run_->offload.gradients)) copied += real(states.gradients);
    if (away(run_->offload.activations)) copied += 2 * kept;
    return moved + copied / with_.bandwidth;
  }

  [[nodiscard]] double after(count stage) const {
    const std::vector<parameter_block> blocks = blocks_of(*model_, *run_, stage);
    double bytes = 0;
    for (const parameter_block& each : blocks) bytes += real(each.all() * run_->value_bytes());
    double seconds = 0;
    if (run_->zero < 2) seconds += collective(bytes);
    if (run_->zero < 3 || run_->gathers == gathers_kind::step) seconds += collective(bytes);
    if (run_->shard_replicas() > 1)  // shards of gradients, summed over the groups
      seconds += 2 * collective(bytes / real(run_->shards() * run_->expert_ranks()), run_->shard_replicas());
    if (run_->offload.optimizer != belay::tier::device) {
      const state_types types = store_types(run_->dtype);
      const double owned = real(states_of(blocks, *run_, types).optimizer / types.optimizer);
      seconds += owned * real(types.gradients + types.values) / with_.bandwidth;
    }
    return seconds;
  }

  const architecture* model_;
  const setting* run_;
  time_constants with_;
  activation_formula kept_;
};

/// Tokens of a step.
[[nodiscard]] inline double tokens_of(const setting& run) noexcept {
  return static_cast<double>(run.global_batch) * static_cast<double>(run.sequence);
}

}  // namespace belay_plan
