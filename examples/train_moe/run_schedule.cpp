// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/run_schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "input/problem_text.hpp"
#include "input/regular_file.hpp"

namespace train_moe {

namespace {

using belay::input_error;
namespace schedule = belay::schedule;

std::string flag_of(const options& run) { return "--schedule " + belay::printable(run.schedule); }

schedule::named_schedule known(const std::string& name) {
  try {
    return schedule::named_schedule::of(name, {});
  } catch (const input_error& problem) {
    throw input_error(input::problem_words(problem) +
                      "; greedy and auto choose by costs, and a name that ends in .csv is a file with a table");
  }
}

schedule::dynamic_table named(const options& run, std::size_t ranks, std::size_t micro_batches) {
  const schedule::named_schedule found = known(run.schedule);
  if (const std::size_t least = found.least_micro_batches(ranks); micro_batches < least) {
    const auto pipelines = static_cast<std::size_t>(run.mesh.data);
    throw input_error(flag_of(run) + " on pp=" + std::to_string(ranks) + " needs at least " + std::to_string(least) +
                      " micro-batches in each pipeline, and --micro-batches " + std::to_string(run.micro_batches) +
                      " with dp=" + std::to_string(pipelines) + " gives " + std::to_string(micro_batches) +
                      ": take --micro-batches " + std::to_string(least * pipelines) + " or more");
  }
  return found.table(ranks, micro_batches, {});
}

// A row of the file, from 1: the first may be a line of sizes.
std::size_t row_of(const options& run, std::size_t rank) {
  return rank + (run.schedule_text.starts_with("belay-schedule") ? 2 : 1);
}

schedule::dynamic_table from_file(const options& run, std::size_t ranks, std::size_t micro_batches) {
  schedule::dynamic_table table = schedule::from_csv(run.schedule_text, {});
  if (table.ranks() != ranks || table.micro_batches() != micro_batches)
    throw input_error(
        "a table of " + std::to_string(table.ranks()) + " ranks and " + std::to_string(table.micro_batches()) +
        " micro-batches, and the run has pp=" + std::to_string(ranks) + " and " + std::to_string(micro_batches) +
        " micro-batches in each pipeline: give --mesh and --micro-batches that fit it");
  const auto proven = belay::proof(table);
  if (!proven.valid())
    throw input_error("row " + std::to_string(row_of(run, table.rank_of(proven.reason.stage))) + ": " +
                      belay::explain(proven.reason));
  return table;
}

}  // namespace

schedule::dynamic_table schedule_of(const options& run) {
  const auto ranks = static_cast<std::size_t>(run.mesh.pipeline);
  const std::size_t micro_batches = batch_shape(run).micro_batches;
  try {
    schedule::dynamic_table table =
        run.schedule_text.empty() ? named(run, ranks, micro_batches) : from_file(run, ranks, micro_batches);
    return run.overlap_pairs ? schedule::with_pairs(table, belay::where{}) : std::move(table);
  } catch (const belay::error& problem) {
    const std::string text = input::problem_words(problem);
    throw input_error(text.starts_with("--schedule ") ? text : flag_of(run) + ": " + text);
  }
}

void expect_one_schedule(const options& run, const belay::group& all) {
  belay::fnv1a own;
  own.add_text(run.schedule).add_text(run.schedule_text).add_text(layers_text(run.stage_layers));
  own.add(run.overlap_pairs ? 1U : 0U);
  const std::uint64_t value = own.value();
  if (belay::rank_comparison().differ(all, {&value, 1}, belay::where::current()))
    throw input_error(
        "--schedule: ranks have different tables: give all of them the same --schedule, --overlap-pairs, "
        "--stage-layers and --schedule-costs");
}

std::vector<std::size_t> layers_of_stages(const options& run, std::size_t stages) {
  const std::size_t layers = run.model.layers;
  const auto ranks = static_cast<std::size_t>(run.mesh.pipeline);
  if (run.stage_layers.empty()) {
    if (layers >= stages) return model::model_part::even_layers(layers, stages);
    const std::size_t chunks = stages / ranks;
    throw input_error("--mesh pp=" + std::to_string(ranks) +
                      (chunks == 1 ? "" : " and " + flag_of(run) + ", " + std::to_string(chunks) + " chunks a rank,") +
                      " make " + std::to_string(stages) + " stages, and the model has " + std::to_string(layers) +
                      (layers == 1 ? " layer" : " layers") + ": each stage has one; pp times chunks is at most " +
                      std::to_string(layers));
  }
  const std::string flag = "--stage-layers " + layers_text(run.stage_layers) + ": ";
  if (run.stage_layers.size() != stages)
    throw input_error(flag + std::to_string(run.stage_layers.size()) + " numbers, and " + flag_of(run) + " on pp=" +
                      std::to_string(ranks) + " has " + std::to_string(stages) + " stages: one number for each");
  const std::size_t all = std::accumulate(run.stage_layers.begin(), run.stage_layers.end(), std::size_t{0});
  if (all != layers)
    throw input_error(flag + std::to_string(all) + " layers together, and the model has " + std::to_string(layers) +
                      ", as in " + layers_text(model::model_part::even_layers(layers, stages)));
  // A stage with the embedding or the head has something to compute.
  for (std::size_t stage = 1; stage + 1 < stages; ++stage)
    if (run.stage_layers[stage] == 0)
      throw input_error(flag + "stage " + std::to_string(stage) +
                        " has no layer: only the first and the last one may, which have the embedding and the head");
  return run.stage_layers;
}

std::vector<model::model_part> parts_of_rank(const options& run, const schedule::dynamic_table& table,
                                             std::size_t rank) {
  const std::vector<std::size_t> layers = layers_of_stages(run, table.stages());
  std::vector<model::model_part> out;
  for (std::size_t chunk = 0; chunk < table.chunks(); ++chunk)
    out.push_back(model::model_part::of(run.model, table.stage(rank, chunk), layers));
  return out;
}

std::size_t most_layers_of_rank(const options& run, const schedule::dynamic_table& table) {
  const std::vector<std::size_t> layers = layers_of_stages(run, table.stages());
  std::size_t most = 0;
  for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
    std::size_t own = 0;
    for (std::size_t chunk = 0; chunk < table.chunks(); ++chunk) own += layers[table.stage(rank, chunk)];
    most = std::max(most, own);
  }
  return most;
}

std::size_t overlapped_pairs(const options& run, const schedule::dynamic_table& table) {
  return run.overlap_pairs ? schedule::pairs_of(table) : 0;
}

std::string read_schedule(const std::string& path) {
  std::string text = input::content_of(path, std::uint64_t{1} << 26U);
  if (text.empty()) throw input_error("--schedule " + belay::printable(path) + ": the file is empty");
  return text;
}

std::string layers_text(const std::vector<std::size_t>& layers) {
  std::string out;
  for (const std::size_t each : layers) out += (out.empty() ? "" : ",") + std::to_string(each);
  return out;
}

}  // namespace train_moe
