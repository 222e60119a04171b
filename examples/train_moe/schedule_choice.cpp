// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/schedule_choice.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "input/problem_text.hpp"
#include "train_moe/run_schedule.hpp"

namespace train_moe {

namespace {

using belay::input_error;
namespace schedule = belay::schedule;
using considered = schedule_choice::considered_table;

// No rank's memory ends a table here, and none overflows a sum.
constexpr std::uint64_t endless = std::uint64_t{1} << 60U;

schedule::staged_costs keeping_one_each(schedule::table_costs time) {
  const std::size_t stages = time.stages.size();
  return {std::move(time), std::vector<schedule::stage_bytes>(stages, {.for_both = 1}), {}};
}

// Of all names, and the greedy table.
void consider_all(schedule_choice& to, std::size_t ranks, std::size_t micro_batches, std::size_t layers) {
  const auto cut = [&](const schedule::placement& placed) -> std::optional<schedule::staged_costs> {
    const std::size_t stages = ranks * placed.chunks;
    if (stages > layers) return std::nullopt;
    return keeping_one_each(to.costs.of_stages(model::model_part::even_layers(layers, stages)));
  };
  const std::vector<std::uint64_t> budget(ranks, endless);
  const schedule::schedule_choice found = schedule::choose(micro_batches, budget, cut, belay::where{});
  const auto consider = [&](const std::string& name, schedule::ticks total) {
    to.tables.push_back({name, name == "greedy" ? schedule::to_csv(*found.greedy) : "", total});
  };
  consider(found.name, found.cost.total);
  for (const auto& each : found.refused) {
    if (each.total > 0)
      consider(each.name, each.total);
    else
      to.refused.push_back({each.name, each.reason, 0});
  }
}

// The greedy table, and those that keep fewer micro-batches on a rank.
void consider_greedy(schedule_choice& to, const options& run, std::size_t ranks, std::size_t micro_batches) {
  const schedule::staged_costs costs = keeping_one_each(to.costs.of_stages(layers_of_stages(run, ranks)));
  for (const std::size_t most : {micro_batches, 2 * ranks, ranks + ranks / 2, ranks, (ranks + 1) / 2, std::size_t{1}}) {
    if (most >= micro_batches && !to.tables.empty()) continue;
    const std::vector<std::uint64_t> budget(ranks, most);
    const auto table = schedule::greedy_table(micro_batches, costs, budget);
    if (!table) continue;
    to.tables.push_back(
        {"greedy", schedule::to_csv(*table), schedule::cost_of(schedule::compute_lists(*table), costs.time).total});
  }
}

}  // namespace

std::string schedule_choice::words() const {
  return tables[taken].name + ", which " + asked + " chose of " + std::to_string(tables.size()) +
         (tables.size() == 1 ? " table" : " tables") + ", by " + belay::printable(costs_of);
}

std::vector<schedule_choice::refused_table> schedule_choice::not_taken() const {
  std::vector<refused_table> out;
  const considered& own = tables[taken];
  // Those before it did not fit, and are among the refused ones.
  for (std::size_t i = taken + 1; asked == "auto" && i < tables.size(); ++i)
    out.push_back({tables[i].name, schedule::why_not_taken(tables[i].total, own.name, own.total), tables[i].total});
  out.insert(out.end(), refused.begin(), refused.end());
  return out;
}

void schedule_choice::take(std::size_t number, options& run) {
  taken = number;
  run.schedule = tables[number].name;
  run.schedule_text = tables[number].text;
}

void schedule_choice::refuse(std::size_t number, const std::string& why) {
  refused.push_back({tables[number].name, why, tables[number].total});
}

bool is_chosen(const std::string& name) { return name == "auto" || name == "greedy"; }

schedule_choice choose_schedule(options& run, const std::string& costs) {
  if (costs.empty()) return choose_schedule(run, counted_costs(run), "multiplications of a token");
  return choose_schedule(run, read_costs(costs, run.model.layers), "the costs of " + costs);
}

schedule_choice choose_schedule(options& run, layer_costs costs, std::string costs_of) {
  const auto ranks = static_cast<std::size_t>(run.mesh.pipeline);
  const std::size_t layers = run.model.layers, micro_batches = batch_shape(run).micro_batches;
  schedule_choice out;
  out.asked = run.schedule;
  out.costs_of = std::move(costs_of);
  out.costs = std::move(costs);
  if (out.asked == "auto" && !run.stage_layers.empty())
    throw input_error("--schedule auto cuts the model as evenly as can be: --stage-layers is for a schedule by name");
  const bool possible = ranks <= layers && micro_batches > 0 && micro_batches <= 65536;
  if (ranks == 1 || !possible)
    out.tables.push_back({"1f1b", "", 0});  // nobody waits, or check() says what is wrong
  else if (out.asked == "auto")
    consider_all(out, ranks, micro_batches, layers);
  else
    consider_greedy(out, run, ranks, micro_batches);
  out.take(0, run);
  return out;
}

}  // namespace train_moe
