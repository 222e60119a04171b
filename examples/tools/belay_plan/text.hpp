// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Plans for people.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/printable.hpp"
#include "belay/train/plan_table.hpp"
#include "tools/belay_plan/plan.hpp"
#include "tools/text_table.hpp"

namespace belay_plan {

/// "70,553,706,496".
[[nodiscard]] inline std::string grouped(count number) {
  std::string out = std::to_string(number);
  for (std::size_t at = out.size(); at > 3;) out.insert(at -= 3, 1, ',');
  return out;
}
/// With so many digits after the point, whatever the locale.
[[nodiscard]] inline std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  std::string out = text;
  std::replace(out.begin(), out.end(), ',', '.');
  return out;
}
[[nodiscard]] inline std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fixed(seconds * 1e6, 1) + " us";
  return seconds < 1 ? fixed(seconds * 1e3, 1) + " ms" : fixed(seconds, 2) + " s";
}
[[nodiscard]] inline std::string percent(double share) { return fixed(100 * share, 1) + " %"; }

/// The flags of a setting, as belay-plan takes them.
[[nodiscard]] inline std::string flags_of(const setting& run) {
  std::string out = "--mesh " + mesh_text(run.mesh) + " --global-batch " + std::to_string(run.global_batch) +
                    " --micro-batch-size " + std::to_string(run.micro_batch_size) + " --sequence " +
                    std::to_string(run.sequence) + " --dtype " + (run.dtype == belay::dtype::bf16 ? "bf16" : "fp32") +
                    " --zero " + std::to_string(run.zero) + " --recompute " + name(run.recompute) + " --schedule " +
                    run.schedule.name;
  if (run.mesh.shard_group != 0) out += " --shard-group " + std::to_string(run.mesh.shard_group);
  if (run.whole_below != 0) out += " --whole-below " + std::to_string(run.whole_below);
  if (run.zero == 3 && run.gathers == gathers_kind::step) out += " --gathers step";
  const std::string offload = text_of(run.offload);
  if (!offload.empty()) out += " --offload " + offload;
  if (run.expert_capacity != 2) out += " --expert-capacity " + fixed(run.expert_capacity, 3);
  return out;
}

[[nodiscard]] inline std::string model_text(const architecture& model) {
  std::string out = "model: " + belay::printable(model.name) + ", " + grouped(parameters_of(model)) + " parameters";
  if (model.has_experts()) out += ", " + grouped(active_parameters_of(model)) + " of them visited by a token";
  if (!model.left_out.empty()) out += "; " + model.left_out;
  return out + "\n";
}

[[nodiscard]] inline std::string constants_text(const time_constants& with) {
  return "alpha " + seconds_text(with.alpha) + " a message, beta " + fixed(1e12 / with.bandwidth, 3) + " ps a byte (" +
         fixed(with.bandwidth / 1e9, 1) + " GB/s), flops " + fixed(with.flops / 1e12, 1) + " TFLOP/s a rank";
}

/// Rows of all classes, and a total, for a table; those of the fullest classes where there are many.
class plan_text {
 public:
  static constexpr std::size_t most_columns = 8;

  explicit plan_text(const plan_result& plan, const belay::budget& limit)
      : plan_(&plan), limit_(&limit), columns_(chosen_classes(plan, most_columns)) {}

  [[nodiscard]] std::string text() const {
    const setting& run = plan_->run;
    std::string out = model_text(plan_->model) + "run:   " + flags_of(run) + "\n       " + grouped(run.ranks()) +
                      (run.ranks() == 1 ? " rank, " : " ranks, ") + grouped(run.micro_batches()) +
                      " micro-batches a pipeline, " + grouped(run.global_batch * run.sequence) + " tokens a step\n";
    if (plan_->rehearsed()) {
      out += "bytes: of the rehearsal that train_moe begins with";
      if (belay::checked(belay::check_level::local))
        out += "; this is a checked build, which reduces gradients in a second buffer: a release needs less";
      out += "\n";
    } else {
      out += "bytes: states by formula, what is marked estimate by a simpler one: " +
             belay::printable(plan_->why_estimate) + "\n";
    }
    return out + "\n" + table() + "\n" + states() + times();
  }

 private:
  // All rows of a tier, in the order in which classes have them.
  [[nodiscard]] std::vector<std::pair<std::string, origin>> purposes(belay::tier in) const {
    std::vector<std::pair<std::string, origin>> out;
    for (const rank_class& each : plan_->classes)
      for (const purpose_row& row : each.rows) {
        const bool known =
            std::any_of(out.begin(), out.end(), [&](const auto& one) { return one.first == row.purpose; });
        if (row.where_it_is == in && !known) out.emplace_back(row.purpose, row.from);
      }
    return out;
  }

  [[nodiscard]] std::string table() const {
    std::vector<std::vector<std::string>> rows{{"tier", "bytes for"}, {"", ""}};  // a heading of two lines
    for (const rank_class* each : columns_) {
      rows[0].push_back(heading_of(each->stage));
      rows[1].push_back("rank " + ranks_text(each->ranks));
    }
    rows[0].emplace_back("by");
    rows[1].emplace_back("");
    for (std::size_t t = 0; t < belay::tier_count; ++t) {
      const auto in = static_cast<belay::tier>(t);
      const auto all = purposes(in);
      if (all.empty()) continue;
      for (const auto& [what, from] : all)
        add(
            rows, in, what, [&, of = what](const rank_class& one) { return std::to_string(one.bytes(in, of)); },
            name(from));
      add(rows, in, "total", [&](const rank_class& one) { return std::to_string(one.total(in)); }, "");
      add(rows, in, "", [&](const rank_class& one) { return belay::bytes_text(one.total(in)); }, "");
      if ((*limit_)[in] != belay::unlimited_bytes)
        add(rows, in, "budget", [&](const rank_class&) { return std::to_string((*limit_)[in]); }, "");
    }
    std::string out = aligned(std::move(rows));
    if (columns_.size() < plan_->classes.size())
      out +=
          "and " + std::to_string(plan_->classes.size() - columns_.size()) +
          " more classes of ranks, none of which needs more of the device than the fullest of these (--json has all)\n";
    return out;
  }

  [[nodiscard]] std::string heading_of(int place) const {
    const laid_schedule& laid = plan_->run.laid();
    return (laid.chunks() == 1 ? "stage " : "stages ") + laid.stages_text(static_cast<std::size_t>(place));
  }

  template <class Cell>
  void add(std::vector<std::vector<std::string>>& rows, belay::tier in, const std::string& what, Cell cell,
           const char* from) const {
    rows.push_back({belay::name(in), belay::printable(what)});
    for (const rank_class* each : columns_) rows.back().push_back(cell(*each));
    rows.back().emplace_back(from);
  }

  // Numbers are right-aligned, words not.
  [[nodiscard]] static std::string aligned(std::vector<std::vector<std::string>> rows) {
    for (std::size_t column = 2; column + 1 < rows[0].size(); ++column) {
      std::size_t width = 0;
      for (const auto& row : rows) width = std::max(width, row[column].size());
      for (auto& row : rows) row[column].insert(0, width - row[column].size(), ' ');
    }
    tools::text_table out;
    for (auto& row : rows) out.add(std::move(row));
    return out.text();
  }

  [[nodiscard]] std::string states() const {
    const state_types own = store_types(plan_->run.dtype);
    const auto stage = static_cast<std::size_t>(plan_->fullest(belay::tier::device).stage);
    const stage_states& bytes = plan_->states[stage];
    const bool bf16 = plan_->run.dtype == belay::dtype::bf16;
    return "states of a rank of " + heading_of(static_cast<int>(stage)) +
           ", by formula: " + grouped(bytes.store.all()) + " bytes (" + std::to_string(own.all()) + " a parameter, " +
           (bf16 ? "bf16 values 2, fp32 gradients 4, fp32 copy and moments 12"
                 : "fp32 values 4, gradients 4, moments 8") +
           ") and " + grouped(bytes.buckets) + " for two buckets and 64 KiB\n" +
           "in the ZeRO paper's types: " + grouped(bytes.paper.all()) +
           " bytes (16 a parameter, fp16 values 2, fp16 gradients 2, fp32 copy and moments 12)\n";
  }

  [[nodiscard]] std::string times() const {
    const double seconds = plan_->time.all();
    return choice() + "bubble: " + percent(plan_->bubble.equal_stages) + " of the pipeline with equal stages, " +
           percent(plan_->bubble.by_time) + " with the times below\nstep:   " + seconds_text(seconds) + ", " +
           grouped(static_cast<count>(tokens_of(plan_->run) / seconds)) + " tokens/s, predicted with " +
           constants_text(plan_->constants) + "\n";
  }

  // Those that fit and take longer in the order of their times, then those that cannot be.
  [[nodiscard]] std::string choice() const {
    if (!plan_->choice) return "";
    const chosen_schedule& one = *plan_->choice;
    std::string out =
        "schedule: " + one.name +
        (one.refused.empty() ? ", " : " of " + std::to_string(one.refused.size() + 1) + ", the shortest that fits: ") +
        seconds_text(one.seconds) + ", bubble " + percent(one.bubble) + ", at most " + std::to_string(one.peak) +
        (one.peak == 1 ? " micro-batch" : " micro-batches") + " of a chunk kept\n";
    const auto& stages = one.costs.stages;
    const auto range = [&](auto value) {
      double least = value(stages[0]), most = least;
      for (const stage_time& each : stages) {
        least = std::min(least, value(each));
        most = std::max(most, value(each));
      }
      return seconds_text(least) + (seconds_text(least) == seconds_text(most) ? "" : " to " + seconds_text(most));
    };
    out += "costs of a stage: F " + range([](const stage_time& each) { return each.forward; }) + ", I " +
           range([](const stage_time& each) { return each.first_half(); }) + ", W " +
           range([](const stage_time& each) { return each.weight_gradient; }) + "; a message " +
           seconds_text(one.costs.message) + "\n";
    std::vector<chosen_schedule::refused_schedule> others = one.refused;
    std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) {
      if ((a.seconds > 0) != (b.seconds > 0)) return a.seconds > 0;
      return a.seconds != b.seconds ? a.seconds < b.seconds : a.name < b.name;
    });
    tools::text_table table;
    for (const auto& each : others)
      table.add({"  not " + each.name, each.seconds > 0 ? "takes " + seconds_text(each.seconds) : each.reason});
    return out + table.text();
  }

  const plan_result* plan_;
  const belay::budget* limit_;
  std::vector<const rank_class*> columns_;
};

/// The plans that a search has found, fastest first.
[[nodiscard]] inline std::string search_text(const std::vector<plan_result>& found, const belay::budget& limit) {
  tools::text_table table;
  table.add({"", "mesh", "micro-batch", "zero", "recompute", "schedule", "offload", "device", "step", "tokens/s",
             "bubble", "by"});
  for (std::size_t i = 0; i < found.size(); ++i) {
    const plan_result& one = found[i];
    const setting& run = one.run;
    const count device = one.fullest(belay::tier::device).total(belay::tier::device);
    const std::string offload = text_of(run.offload);
    table.add({std::to_string(i + 1), mesh_text(run.mesh), std::to_string(run.micro_batch_size),
               std::to_string(run.zero), name(run.recompute), run.schedule.name, offload.empty() ? "-" : offload,
               belay::bytes_text(device), seconds_text(one.time.all()),
               grouped(static_cast<count>(tokens_of(run) / one.time.all())), percent(one.bubble.equal_stages),
               one.rehearsed() ? "rehearsal" : "estimate"});
  }
  std::string out = table.text();
  for (std::size_t t = 0; t < belay::tier_count; ++t)
    if (limit.bytes[t] != belay::unlimited_bytes)
      out += std::string("budget of tier ") + belay::name(static_cast<belay::tier>(t)) + ": " +
             std::to_string(limit.bytes[t]) + " bytes (" + belay::bytes_text(limit.bytes[t]) + ") a rank\n";
  return out + "the first: " + flags_of(found.front().run) + "\n";
}

}  // namespace belay_plan
