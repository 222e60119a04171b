// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Turns the numbers that ranks have exchanged at the end of a step into the line for people and the line for programs.
// All memory is allocated here, before the first step.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/finite.hpp"
#include "belay/core/printable.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/report/event_file.hpp"
#include "belay/report/output.hpp"
#include "belay/report/step_line.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"
#include "train_moe/rank_trainer.hpp"
#include "train_moe/report_table.hpp"
#include "train_moe/run_schedule.hpp"
#include "train_moe/schedule_costs.hpp"

namespace train_moe {

class step_printer {
 public:
  step_printer(const options& run, const std::string& json_path, const std::string& tensorboard)
      : run_(run),
        schedule_(schedule_of(run)),
        player_(schedule_),
        table_(run, schedule_.stages()),
        measured_(schedule_.stages()),
        line_(static_cast<std::size_t>(run.mesh.ranks()), run.model.layers, run.model.experts),
        expert_tokens_(run.model.layers * run.model.experts) {
    if (!json_path.empty()) json_.emplace(json_path, belay::where{});
    if (!tensorboard.empty()) events_.emplace(tensorboard, belay::where{});
  }
  step_printer(const step_printer&) = delete;  // the player points to the table beside it
  step_printer& operator=(const step_printer&) = delete;

  /// Prints one step; `seconds` is what it took, `shared` and `memory` the tables that all ranks filled. Returns what
  /// it has printed, which points into both.
  belay::step_report print(std::size_t step, const step_result& result, double seconds, std::span<const double> shared,
                           const belay::memory_report& memory) {
    belay::step_report report;
    report.step = step;
    report.loss = result.loss;
    report.aux_loss = result.aux_loss;
    report.grad_norm = result.grad_norm;
    report.tokens = tokens_per_step(run_);
    report.tokens_per_s = static_cast<double>(report.tokens) / seconds;
    report.device = bytes_of(belay::tier::device, memory);
    report.host = bytes_of(belay::tier::host, memory);
    if (uses(belay::tier::pinned, memory)) report.pinned = bytes_of(belay::tier::pinned, memory);
    if (uses(belay::tier::file, memory)) report.file = bytes_of(belay::tier::file, memory);
    report.open_obligations = memory.open_obligations();
    collect(report, shared);
    report.replayed = result.replays > 0;
    // Allocations count from the end of the first step, or of a replay: its line is the first of this plan.
    const bool begins = !std::exchange(begun_, true) || report.replayed;
    const belay::allocation_report now{memory.allocations(belay::tier::device), memory.allocations(belay::tier::host),
                                       tools::heap_allocations()};
    if (begins) base_ = now;
    report.allocations = {now.device - base_.device, now.host - base_.host, now.heap - base_.heap};
    terminal_.write(line_.human(report));
    if (json_) json_->write(line_.json(report));
    write_events([&](belay::event_file& events) {
      belay::add_scalars(events, report);
      events.write(step);
    });
    if (begins) base_.heap = tools::heap_allocations();
    return report;
  }

  /// The costs of the stages as they were measured, as text; nothing where they were not.
  [[nodiscard]] std::optional<std::string> measured() const { return measured_.text(); }

  /// A line of its own in the JSON file, if there is one.
  void write_json(std::string_view text) {
    if (json_) json_->write(text);
  }
  void say(std::string_view text) { terminal_.write(text); }
  /// `add(events)` writes, where there are events. A file that fails is said once, and training goes on.
  template <class Add>
  void write_events(Add&& add) {
    if (!events_) return;
    try {
      add(*events_);
    } catch (const belay::file_error& problem) {
      std::fprintf(stderr, "train_moe: no more events are written, training goes on: %s\n",
                   belay::printable_what(problem).c_str());
      events_.reset();
    }
  }

 private:
  [[nodiscard]] static belay::tier_report bytes_of(belay::tier of, const belay::memory_report& memory) {
    return {memory.live(of), memory.peak(of), memory.planned(of)};
  }
  // Of the plan, which is the same in every step: lines have the same tiers.
  [[nodiscard]] static bool uses(belay::tier of, const belay::memory_report& memory) {
    return std::ranges::any_of(memory.planned(of), [](std::uint64_t bytes) { return bytes > 0; });
  }

  void collect(belay::step_report& report, std::span<const double> shared) {
    const auto ranks = static_cast<std::size_t>(run_.mesh.ranks());
    belay::copy_times copies;
    for (std::size_t r = 0; r < ranks; ++r) {
      report.bubble += shared[table_.of_rank(r, report_table::bubble)] / static_cast<double>(ranks);
      const auto of = [&](report_table::number which) {
        return static_cast<std::uint64_t>(shared[table_.of_rank(r, which)]);
      };
      report.prefetch_hits += of(report_table::prefetch_hits);
      report.plan_misses += of(report_table::plan_misses);
      report.gathered_bytes_peak = std::max(report.gathered_bytes_peak, of(report_table::gathered_bytes));
      report.offloaded_pinned = std::max(report.offloaded_pinned, of(report_table::offloaded_pinned));
      report.offloaded_host = std::max(report.offloaded_host, of(report_table::offloaded_host));
      report.offloaded_file = std::max(report.offloaded_file, of(report_table::offloaded_file));
      copies.copied += of(report_table::copied_nanoseconds);
      copies.waited += of(report_table::waited_nanoseconds);
    }
    report.hidden_copy_share = copies.hidden_share();
    report.bubble_predicted = predicted_bubble(shared);
    measured_.add({&table_, shared, ranks_of_stage(run_)});
    for (std::size_t layer = 0; layer < run_.model.layers; ++layer) {
      for (std::size_t e = 0; e < run_.model.experts; ++e)
        expert_tokens_[layer * run_.model.experts + e] = static_cast<std::uint64_t>(shared[table_.tokens(layer, e)]);
    }
    report.expert_tokens = {expert_tokens_.data(), {run_.model.layers, run_.model.experts}};
  }

  // The executed table, played with each stage's mean times; all of a device are known, or none.
  [[nodiscard]] double predicted_bubble(std::span<const double> shared) {
    auto nobody = [](auto&&...) {};
    const double bubble = player_.play_times(stage_seconds{&table_, shared, ranks_of_stage(run_)}, nobody).bubble();
    return belay::is_nan(shared[table_.of_rank(0, report_table::bubble)]) ? report_table::unknown : bubble;
  }

  options run_;
  belay::schedule::dynamic_table schedule_;
  belay::schedule::timeline_player<belay::schedule::dynamic_table> player_;
  report_table table_;
  measured_costs measured_;
  belay::step_line line_;
  std::vector<std::uint64_t> expert_tokens_;
  belay::allocation_report base_;
  bool begun_ = false;
  belay::output terminal_{STDOUT_FILENO, "standard output"};
  std::optional<belay::output> json_;
  std::optional<belay::event_file> events_;
};

}  // namespace train_moe
