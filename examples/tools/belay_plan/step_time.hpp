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

/// Seconds of one micro-batch in a stage of the cut.
struct stage_time {
  double forward = 0, input_gradient = 0, weight_gradient = 0;  // computing, and rows to experts and back
  double hidden = 0;                                            // gathers, reductions and copies, which run beside that

  [[nodiscard]] bool operator==(const stage_time&) const = default;
  [[nodiscard]] double computing() const noexcept { return forward + input_gradient + weight_gradient; }
  /// The first half of the backward takes longer by as much as what runs beside is longer than the computing.
  [[nodiscard]] double first_half() const noexcept { return input_gradient + std::max(hidden - computing(), 0.0); }
};

/// The stages of the cut, and a tensor between two ranks.
struct staged_times {
  std::vector<stage_time> stages;
  double message = 0;

  [[nodiscard]] bool operator==(const staged_times&) const = default;
  /// Seconds that a whole number of a schedule's costs stands for: a billionth of the longest compute.
  [[nodiscard]] double tick() const noexcept {
    double longest = message;
    for (const stage_time& each : stages)
      longest = std::max({longest, each.forward, each.first_half(), each.weight_gradient});
    return longest > 0 ? longest / 1e9 : 1;
  }
  [[nodiscard]] belay::schedule::table_costs costs() const {
    const auto whole = [unit = tick()](double seconds) {
      return static_cast<belay::schedule::ticks>(std::llround(seconds / unit));
    };
    belay::schedule::table_costs out{{}, whole(message)};
    for (const stage_time& each : stages)
      out.stages.push_back({whole(each.forward), whole(each.first_half()), whole(each.weight_gradient)});
    return out;
  }
};

/// Seconds of a step, and where they go.
struct step_time {
  double pipeline = 0;  // all micro-batches through all stages
  double states = 0;    // after them: gradients that are reduced once a step, parameters that are gathered, offloaded
                        // state

  [[nodiscard]] double all() const noexcept { return pipeline + states; }
};

/// The share of the pipeline's time in which a rank does not compute, mean over ranks.
struct bubble_share {
  double equal_stages = 0;  // where forwards, input gradients and weight gradients of all stages take the same time
  double by_time = 0;       // in the times of the model
};

class time_model {
 public:
  time_model(const architecture& model, const setting& run, const time_constants& with) noexcept
      : model_(&model), run_(&run), with_(with), kept_(model, run) {}

  [[nodiscard]] stage_time of_stage(count stage) const {
    const laid_schedule& laid = run_->laid();
    const auto [first, size] = layers_of_stage(model_->layers, laid.stages(), stage);
    double products = 0, scores = 0, again = 0, kept = 0;
    count mixtures = 0;
    for (count layer = first; layer < first + size; ++layer) {
      products += products_of(layer);
      scores += scores_of();
      again += flops_again(layer);
      kept += kept_.kept(layer);
      mixtures += model_->feed_forward(layer).experts > 0 ? 1U : 0U;
    }
    if (stage + 1 == laid.stages())
      products += 2 * real(run_->rows()) * real(model_->vocabulary) * real(model_->hidden);
    const double rows = real(mixtures) * 2 * exchange();
    const bool twice = run_->recompute == recompute_kind::full;
    stage_time out;
    out.forward = (products + scores) / with_.flops + rows;
    out.input_gradient = (products + 2 * scores + again) / with_.flops + rows * (twice ? 2 : 1);
    out.weight_gradient = products / with_.flops;
    out.hidden = hidden(stage, kept);
    return out;
  }

  [[nodiscard]] staged_times of_stages() const {
    staged_times all;
    for (std::size_t stage = 0; stage < run_->laid().stages(); ++stage) all.stages.push_back(of_stage(stage));
    if (run_->pipeline_ranks() > 1) all.message = with_.alpha + kept_.sent() / with_.bandwidth;
    return all;
  }

  /// All micro-batches through all stages, as the schedule is played.
  [[nodiscard]] double pipeline(const staged_times& stages) const {
    return run_->laid().time(stages.costs()) * stages.tick();
  }
  /// Seconds after them.
  [[nodiscard]] double states() const {
    double most = 0;
    for (count rank = 0; rank < run_->pipeline_ranks(); ++rank) most = std::max(most, after(rank));
    return most;
  }
  [[nodiscard]] step_time of_step() const { return {pipeline(of_stages()), states()}; }

  [[nodiscard]] bubble_share bubble() const {
    return {run_->laid().idle(belay::schedule::equal_costs{}), run_->laid().idle(of_stages().costs())};
  }

 private:
  [[nodiscard]] static double real(count value) noexcept { return static_cast<double>(value); }

  // Scores and what is summed with them; half of both is masked.
  [[nodiscard]] double scores_of() const noexcept {
    const attention_part& part = model_->attention;
    return real(run_->rows()) * real(run_->sequence) * (real(part.query_width) + real(part.context_width));
  }
  [[nodiscard]] double products_of(count layer) const noexcept {
    const count visited =
        visited_by_all(*model_, layer) + model_->feed_forward(layer).experts_per_token * expert_parameters(*model_);
    return 2 * real(run_->rows()) * real(model_->attention.parameters + visited);
  }
  [[nodiscard]] double flops_again(count layer) const noexcept {
    switch (run_->recompute) {
      case recompute_kind::none: return 0;
      case recompute_kind::selective: return 2 * real(run_->rows()) * real(model_->attention.parameters) + scores_of();
      case recompute_kind::full: return products_of(layer) + scores_of();
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
    const std::vector<parameter_block> blocks = blocks_of_stage(*model_, *run_, stage);
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

  [[nodiscard]] double after(count rank) const {
    const std::vector<parameter_block> blocks = blocks_of(*model_, *run_, rank);
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
