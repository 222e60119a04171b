// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one pipeline did in the last step, action by action, and what the rank that a page shows had leased meanwhile,
// by row of the plan: exchanged after the step, for the rank that writes the page.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "belay/comm/reduction.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/report/page.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

class step_record {
 public:
  static constexpr std::size_t most_numbers = 16384;  // of actions' times that ranks exchange; larger tables have none
  static constexpr std::size_t most_moments = 256;    // of a step; of more actions the fullest of each group
  static constexpr std::size_t most_rows = 32;        // of a plan; of one with more there are no bytes by row

  /// Without a record.
  step_record() = default;
  /// On all ranks, in memory of the run.
  template <class Run>
  step_record(const options& settings, Run& run) {
    const belay::schedule::dynamic_table table = schedule_of(settings);
    for (std::size_t stage = 0; stage < table.stages(); ++stage)
      actions_ = std::max(actions_, table.actions(stage).size());
    if (2 * actions_ * table.stages() > most_numbers) actions_ = 0;
    if (actions_ == 0) return;
    const std::size_t moments = std::min(actions_, most_moments) + 1;  // and after the step
    all_ = run.template lease<double>(belay::tier::host, 2 * actions_ * table.stages() + width * moments, "report");
    times_ = all_.first(2 * actions_ * table.stages());
    moments_ = all_.subspan(times_.size());
    kept_.resize(moments_.size());
  }

  [[nodiscard]] bool any() const noexcept { return actions_ > 0; }

  /// On the rank that is shown, whose plan has `rows`: from now on notes what the trainer has leased after each action.
  /// Both outlive the last step.
  template <class Trainer>
  void watch(Trainer& trainer, const std::vector<belay::report_row>& rows) {
    if (!any()) return;
    shown_ = true;
    rows_ = rows;
    own_ = trainer.pipeline().executed().size();
    trainer.pipeline().watch_actions([this, &run = trainer.run()](std::size_t number) {
      if (number < own_) note(run, number * moments_of(own_) / own_);
    });
  }

  /// After a step. Collective over the world.
  template <class Trainer>
  void gather(Trainer& trainer) {
    if (!any()) return;
    std::fill(all_.begin(), all_.end(), 0.0);
    const auto& place = trainer.mesh().coordinate();
    if (place.data == 0 && place.expert == 0) {
      double* out = &times_[2 * actions_ * static_cast<std::size_t>(place.pipeline)];
      for (const belay::executed_action& each : trainer.pipeline().executed()) {
        *out++ = static_cast<double>(each.begin);
        *out++ = static_cast<double>(each.end);
      }
    }
    if (shown_) {
      note(trainer.run(), moments());
      std::copy(kept_.begin(), kept_.end(), moments_.begin());
      std::fill(kept_.begin(), kept_.end(), 0.0);
    }
    trainer.mesh().control().all_reduce(all_, belay::sum);
  }

  /// When a stage of the first pipeline began and ended an action, in nanoseconds of its clock.
  [[nodiscard]] double begin(std::size_t stage, std::size_t action) const { return times_[at(stage, action)]; }
  [[nodiscard]] double end(std::size_t stage, std::size_t action) const { return times_[at(stage, action) + 1]; }
  /// Of the shown rank, moments of its step, and what it has then: bytes of a row, and open obligations. The one after
  /// the last is that after the step.
  [[nodiscard]] std::size_t moments() const noexcept { return moments_.size() / width - 1; }
  /// Of a rank that has so many actions.
  [[nodiscard]] std::size_t moments_of(std::size_t actions) const noexcept { return std::min(actions, moments()); }
  [[nodiscard]] std::uint64_t live(std::size_t moment, std::size_t row) const {
    return static_cast<std::uint64_t>(moments_[width * moment + row]);
  }
  [[nodiscard]] std::uint64_t open(std::size_t moment) const { return live(moment, most_rows); }

 private:
  static constexpr std::size_t width = most_rows + 1;  // numbers of a moment

  [[nodiscard]] std::size_t at(std::size_t stage, std::size_t action) const noexcept {
    return 2 * (actions_ * stage + action);
  }
  // The row of each lease; leases for as long as the run are made before its first step.
  template <class Run>
  void find_places(const Run& run) {
    if (leases_ == run.lasting().items().size()) return;
    leases_ = run.lasting().items().size();
    place_of_.clear();
    run.each_live([this](belay::tier in, std::string_view purpose, std::size_t) {
      const auto is = [&](const belay::report_row& row) {
        return row.tier == belay::name(in) && row.purpose == purpose;
      };
      const auto at = static_cast<std::size_t>(std::ranges::find_if(rows_, is) - rows_.begin());
      place_of_.push_back(rows_.size() <= most_rows && at < rows_.size() ? at : most_rows);
    });
  }
  // Of several in one place that with most bytes.
  template <class Run>
  void note(const Run& run, std::size_t moment) {
    find_places(run);
    std::fill(std::begin(now_), std::end(now_), 0.0);
    std::size_t number = 0;
    run.each_live([&](belay::tier, std::string_view, std::size_t bytes) {
      const std::size_t place = number < place_of_.size() ? place_of_[number] : most_rows;
      ++number;
      if (place < most_rows) now_[place] += static_cast<double>(bytes);
    });
    now_[most_rows] = static_cast<double>(run.engine().obligations().open_count());
    double* const out = &kept_[width * moment];
    if (std::accumulate(now_, now_ + most_rows, 0.0) >= std::accumulate(out, out + most_rows, 0.0))
      std::copy_n(now_, width, out);
  }

  std::size_t actions_ = 0;  // of the stage with most
  std::size_t own_ = 0;      // of this rank's stage
  bool shown_ = false;
  std::span<double> all_;
  std::span<double> times_;    // [stage][action][2]
  std::span<double> moments_;  // [moment][row, then open obligations], of the shown rank
  std::vector<double> kept_;   // the same while the step runs, on that rank
  std::vector<belay::report_row> rows_;
  std::size_t leases_ = 0;
  std::vector<std::size_t> place_of_;  // the row of each lease of the run; most_rows: none
  double now_[width] = {};
};

}  // namespace train_moe
