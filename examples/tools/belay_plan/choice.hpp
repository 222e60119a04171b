// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// --schedule auto and greedy: the library chooses among its schedules, or makes one, by the predicted times and bytes
// of this run.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/schedule.hpp"
#include "tools/belay_plan/memory.hpp"
#include "tools/belay_plan/step_time.hpp"

namespace belay_plan {

/// A choice: its costs, and why no other.
struct chosen_schedule {
  std::string name;
  staged_times costs;    // of the stages that it cuts the model into
  double seconds = 0;    // of all micro-batches
  double bubble = 0;     // in that time
  std::size_t peak = 0;  // chunks that a rank keeps at most
  struct refused_schedule {
    std::string name, reason;
    double seconds = 0;  // of one that fits; 0: it was refused for what it is
  };
  std::vector<refused_schedule> refused;
};

/// The greedy table of one chunk a rank. Throws belay::usage_error where a model has fewer layers, or one micro-batch
/// does not fit.
[[nodiscard]] inline belay::schedule::schedule_choice make_greedy(std::size_t micro_batches,
                                                                  const std::vector<std::uint64_t>& budget,
                                                                  belay::schedule::costs_of_placement cut) {
  namespace schedule = belay::schedule;
  const std::optional<schedule::staged_costs> costs = cut({});
  if (!costs) throw belay::usage_error("the network has too few layers", belay::where{});
  std::optional<schedule::dynamic_table> table = schedule::greedy_table(micro_batches, *costs, budget);
  if (!table) throw belay::usage_error("one micro-batch does not fit", belay::where{});
  const schedule::eager_cost cost = schedule::cost_of(*table, costs->time);
  std::vector<std::uint64_t> bytes = schedule::peak_bytes(*table, costs->kept);
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) bytes[rank] += costs->always_of(rank);
  return {"greedy", std::move(*table), cost, std::move(bytes), {}, std::nullopt};
}

/// Chooses for `run`, whose schedule is "auto" or "greedy", and puts what was chosen there. `limit` is the budget.
/// Throws belay::usage_error where no schedule fits.
[[nodiscard]] inline chosen_schedule choose_schedule(const architecture& model, setting& run,
                                                     const time_constants& with, const belay::budget& limit) {
  namespace schedule = belay::schedule;
  const auto ranks = static_cast<std::size_t>(run.pipeline_ranks());
  const bool greedy = run.schedule.name == "greedy";
  run.schedule = {};
  if (ranks == 1) {  // all of them compute one after the other
    const time_model times(model, run, with);
    const staged_times costs = times.of_stages();
    return {run.schedule.name, costs, times.pipeline(costs), 0, 1, {}};
  }
  // One unit of time for every cut of the model, so that their times can be compared.
  const double unit = time_model(model, run, with).of_stages().tick();
  const auto in_units = [&](const staged_times& times) {
    schedule::table_costs out{{}, std::llround(times.message / unit)};
    for (const stage_time& each : times.stages)
      out.stages.push_back({std::llround(each.forward / unit), std::llround(each.first_half() / unit),
                            std::llround(each.weight_gradient / unit)});
    return out;
  };
  // A schedule of each placement stands for all of them: where stages lie decides what they take and keep.
  const auto cut = [&](const schedule::placement& placed) -> std::optional<schedule::staged_costs> {
    if (ranks * placed.chunks > model.layers) return std::nullopt;
    setting one = run;
    const bool turns = placed.chunks == 2 && placed.stage(0, 1, ranks) != ranks;
    one.schedule.name = placed.chunks == 1 ? "zb-h1"
                        : turns            ? "zb-v"
                                           : "interleaved-zb:" + std::to_string(placed.chunks);
    schedule::staged_costs out{in_units(time_model(model, one, with).of_stages()), {}, {}};
    const activation_bytes bytes(model, one);
    const bool away = run.offload.activations != belay::tier::device;
    for (std::size_t stage = 0; stage < ranks * placed.chunks; ++stage) {
      const double kept = (away ? bytes.logits(stage) : bytes.kept(stage)) + bytes.windows(stage);
      out.kept.push_back({.for_both = static_cast<std::uint64_t>(std::ceil(kept))});
    }
    const laid_schedule& laid = one.laid();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const double in_flight =
          laid.most(rank, [&](std::size_t stage) { return static_cast<double>(out.kept[stage].for_both); });
      const count all = memory_of(model, one, rank).total(belay::tier::device);
      out.always.push_back(all > whole_bytes(in_flight) ? all - whole_bytes(in_flight) : 0);
    }
    return out;
  };
  const std::vector<std::uint64_t> budget(ranks, limit[belay::tier::device]);
  const auto micro_batches = static_cast<std::size_t>(run.micro_batches());
  schedule::schedule_choice found =
      greedy ? make_greedy(micro_batches, budget, cut) : schedule::choose(micro_batches, budget, cut, belay::where{});
  run.schedule = {found.name, nullptr};
  if (found.name == "greedy")
    run.schedule = {"greedy", std::make_shared<const schedule::dynamic_table>(std::move(found.table))};
  const time_model times(model, run, with);
  const staged_times costs = times.of_stages();
  chosen_schedule out{found.name, costs, times.pipeline(costs), times.bubble().by_time, found.cost.peak, {}};
  for (auto& each : found.refused)
    out.refused.push_back({each.name, each.reason, static_cast<double>(each.total) * unit});
  return out;
}

}  // namespace belay_plan
