// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Plans for programs.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "tools/belay_plan/plan.hpp"
#include "tools/belay_plan/text.hpp"

namespace belay_plan {

using nlohmann::ordered_json;

[[nodiscard]] inline ordered_json json_of(const architecture& model) {
  return {{"name", model.name},
          {"type", model.type},
          {"parameters", parameters_of(model)},
          {"active_parameters", active_parameters_of(model)},
          {"left_out", model.left_out.empty() ? ordered_json() : ordered_json(model.left_out)}};
}

[[nodiscard]] inline ordered_json json_of(const setting& run) {
  const std::string offload = text_of(run.offload);
  return {{"mesh", {{"pp", run.mesh.pipeline}, {"dp", run.mesh.data}, {"ep", run.mesh.expert}}},
          {"ranks", run.ranks()},
          {"global_batch", run.global_batch},
          {"micro_batch_size", run.micro_batch_size},
          {"micro_batches", run.micro_batches()},
          {"sequence", run.sequence},
          {"dtype", run.dtype == belay::dtype::bf16 ? "bf16" : "fp32"},
          {"zero", run.zero},
          {"shard_group", run.shards()},
          {"whole_below", run.whole_below},
          {"gathers", name(run.gathers)},
          {"recompute", name(run.recompute)},
          {"schedule", run.schedule.name},
          {"chunks", run.laid().chunks()},
          {"offload", offload.empty() ? ordered_json() : ordered_json(offload)},
          {"expert_capacity", run.expert_capacity}};
}

[[nodiscard]] inline ordered_json json_of(const chosen_schedule& one) {
  ordered_json stages = ordered_json::array(), refused = ordered_json::array();
  for (const stage_time& each : one.costs.stages)
    stages.push_back(
        {{"forward", each.forward}, {"input_gradient", each.first_half()}, {"weight_gradient", each.weight_gradient}});
  for (const auto& each : one.refused)
    refused.push_back({{"name", each.name},
                       {"seconds", each.seconds > 0 ? ordered_json(each.seconds) : ordered_json()},
                       {"reason", each.seconds > 0 ? "takes as long, or longer" : each.reason}});
  return {{"name", one.name},        {"seconds", one.seconds},       {"bubble", one.bubble},
          {"peak_chunks", one.peak}, {"message", one.costs.message}, {"stages", stages},
          {"refused", refused}};
}

[[nodiscard]] inline ordered_json json_of(const rank_class& one, const laid_schedule& laid) {
  ordered_json ranks = ordered_json::array(), bytes = ordered_json::object(), by = ordered_json::object();
  for (const rank_range& each : one.ranks) ranks.push_back({each.first, each.last});
  for (const purpose_row& each : one.rows) {
    const char* const in = belay::name(each.where_it_is);
    bytes[in][each.purpose] = each.bytes;
    by[in][each.purpose] = name(each.from);
  }
  ordered_json total = ordered_json::object();
  for (const auto& [in, inside] : bytes.items()) {
    count all = 0;
    for (const auto& [what, value] : inside.items()) all += value.get<count>();
    total[in] = all;
  }
  ordered_json stages = ordered_json::array();
  for (std::size_t chunk = 0; chunk < laid.chunks(); ++chunk)
    stages.push_back(laid.stage(static_cast<std::size_t>(one.stage), chunk));
  return {{"stage", one.stage}, {"stages", stages}, {"ranks", ranks}, {"size", one.size()},
          {"total", total},     {"bytes", bytes},   {"by", by}};
}

[[nodiscard]] inline ordered_json json_of(const state_bytes& bytes) {
  return {
      {"values", bytes.values}, {"gradients", bytes.gradients}, {"optimizer", bytes.optimizer}, {"all", bytes.all()}};
}

[[nodiscard]] inline ordered_json json_of(const plan_result& plan) {
  ordered_json classes = ordered_json::array(), states = ordered_json::array();
  for (const rank_class& each : plan.classes) classes.push_back(json_of(each, plan.run.laid()));
  for (const stage_states& each : plan.states)
    states.push_back({{"store", json_of(each.store)}, {"buckets", each.buckets}, {"paper", json_of(each.paper)}});
  const state_types own = store_types(plan.run.dtype);
  return {{"model", json_of(plan.model)},
          {"run", json_of(plan.run)},
          {"rehearsed", plan.rehearsed()},
          {"rehearsed_ranks", plan.rehearsed_ranks},
          {"why_estimate", plan.rehearsed() ? ordered_json() : ordered_json(plan.why_estimate)},
          {"checks", static_cast<int>(belay::checks)},
          {"classes", classes},
          {"bytes_a_parameter", {{"store", own.all()}, {"paper", paper_types.all()}}},
          {"states_by_stage", states},
          {"bubble", {{"equal_stages", plan.bubble.equal_stages}, {"by_time", plan.bubble.by_time}}},
          {"schedule_choice", plan.choice ? json_of(*plan.choice) : ordered_json()},
          {"step",
           {{"seconds", plan.time.all()},
            {"pipeline_seconds", plan.time.pipeline},
            {"states_seconds", plan.time.states},
            {"tokens_per_s", tokens_of(plan.run) / plan.time.all()},
            {"alpha", plan.constants.alpha},
            {"beta", 1 / plan.constants.bandwidth},
            {"flops", plan.constants.flops}}}};
}

}  // namespace belay_plan
