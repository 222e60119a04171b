// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "input/problem_text.hpp"
#include "tools/belay_plan/rehearsal.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "belay/core/error.hpp"
#include "train_moe/planned_run.hpp"

namespace belay_plan {

namespace {

// Calls of layers in one rehearsal of a stage: what takes some seconds.
constexpr count most_calls = count{1} << 21U;

train_moe::command_line line_of(const config_text& config, const setting& run) {
  train_moe::command_line line;
  train_moe::options& out = line.run;
  line.config = train_moe::parse_model(config.text, static_cast<std::size_t>(run.sequence), config.source);
  line.model = config.source;
  out.mesh = run.mesh;
  out.schedule = run.schedule.name;
  if (run.schedule.table) out.schedule_text = belay::schedule::to_csv(*run.schedule.table);
  out.micro_batches = static_cast<std::size_t>(run.all_micro_batches());
  out.micro_batch_size = static_cast<std::size_t>(run.micro_batch_size);
  out.sequence = static_cast<std::size_t>(run.sequence);
  out.expert_capacity = run.expert_capacity;
  out.zero = static_cast<belay::zero_stage>(run.zero);
  out.whole_below = static_cast<std::size_t>(run.whole_below);
  if (run.zero == 3 && run.gathers == gathers_kind::step) out.reshard = belay::reshard_when::after_step;
  out.recompute = run.recompute == recompute_kind::full        ? train_moe::recompute_kind::full
                  : run.recompute == recompute_kind::selective ? train_moe::recompute_kind::selective
                                                               : train_moe::recompute_kind::none;
  out.dtype = run.dtype;
  out.bucket_bytes = static_cast<std::size_t>(run.bucket_bytes);
  out.optimizer_tier = run.offload.optimizer;
  out.parameter_tier = run.offload.parameters;
  out.gradient_tier = run.offload.gradients;
  out.activation_tier = run.offload.activations;
  if (uses_files(out)) {
    std::error_code problem;
    out.tier_folder = std::filesystem::temp_directory_path(problem).string();
    if (problem)
      throw belay::input_error("tier file is planned in the folder for temporary files, which cannot be used (" +
                               problem.message() + "): set TMPDIR to a folder of the disk that is meant");
  }
  set_model(out, line.config);
  return line;
}

// Ranks that lease the same, in the order of the first of them.
std::vector<rank_class> classes_of(const belay::plan& planned, const setting& run) {
  std::vector<rank_class> all;
  const int of_stage = run.mesh.data * run.mesh.expert;
  for (int rank = 0; rank < static_cast<int>(planned.ranks().size()); ++rank) {
    std::vector<purpose_row> rows;
    for (const belay::plan_item& item : planned.ranks()[static_cast<std::size_t>(rank)].items()) {
      const auto same = std::find_if(rows.begin(), rows.end(), [&](const purpose_row& each) {
        return each.where_it_is == item.where_it_is && each.purpose == item.purpose;
      });
      if (same != rows.end())
        same->bytes += item.bytes;
      else if (item.bytes > 0)
        rows.push_back({item.where_it_is, item.purpose, item.bytes, origin::rehearsal});
    }
    const int stage = rank / of_stage;
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const rank_class& each) { return each.stage == stage && each.rows == rows; });
    if (found == all.end())
      all.push_back({stage, {{rank, rank}}, std::move(rows)});
    else if (found->ranks.back().last + 1 == rank)
      ++found->ranks.back().last;
    else
      found->ranks.push_back({rank, rank});
  }
  return all;
}

// Schedules that a search rehearses: each takes as long as all that a formula tells.
constexpr const char* rehearsed_schedules[] = {"1f1b", "gpipe"};

}  // namespace

std::string planner::why_not(const setting& run) const {
  if (model_.type != "mixtral") return "train_moe, which is rehearsed, trains Mixtral models alone";
  const count calls = run.micro_batches() * ((model_.layers + run.pipeline_ranks() - 1) / run.pipeline_ranks());
  if (calls > most_calls)
    return std::to_string(run.micro_batches()) + " micro-batches through the layers of a stage take long to rehearse";
  try {
    check(line_of(config_, run).run);
  } catch (const belay::error& problem) {
    return "train_moe refuses it: " + input::problem_words(problem);
  }
  return "";
}

std::vector<std::string> planner::searched_schedules() const {
  if (model_.type == "mixtral") return {std::begin(rehearsed_schedules), std::end(rehearsed_schedules)};
  constexpr std::size_t most_chunks = 4;
  std::vector<std::string> all = belay::schedule::named_schedule::names(most_chunks);
  const auto plain = std::find(all.begin(), all.end(), "1f1b");
  std::rotate(all.begin(), plain, plain + 1);  // the first: of one rank all are the same
  return all;
}

plan_result planner::plan(const setting& run) const {
  std::string why = why_not(run);
  if (why.empty()) {
    try {
      const belay::rehearsal_result rehearsed = train_moe::planned_run(line_of(config_, run));
      plan_result out = plan_without_bytes(model_, run, with_);
      out.classes = classes_of(rehearsed.plan, run);
      out.rehearsed_ranks = rehearsed.rehearsed;
      return out;
    } catch (const belay::error& problem) {
      why = "the rehearsal was refused: " + input::problem_words(problem);
    }
  }
  if (run.whole_below > 0)  // the formula knows no single parameter
    throw belay::input_error("--whole-below " + std::to_string(run.whole_below) +
                             " is planned where the run can be rehearsed: leave it out here, because " + why);
  return estimated_plan(model_, run, with_, std::move(why));
}

}  // namespace belay_plan
