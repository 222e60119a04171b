// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one pipeline did in the last step, action by action, and what the rank that a page shows had leased meanwhile,
// by row of the plan: exchanged after the step, for the rank that writes the page.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "belay/parallel/pipeline/runner.hpp"
#include "belay/report/page.hpp"
#include "train_moe/options.hpp"
#include "train_moe/rank_run.hpp"
#include "train_moe/rank_trainer.hpp"

namespace train_moe {

class step_record final : public belay::action_observer {
 public:
  static constexpr std::size_t most_numbers = 16384;  // of actions' times that ranks exchange; larger tables have none
  static constexpr std::size_t most_moments = 256;    // of a step; of more actions the fullest of each group
  static constexpr std::size_t most_rows = 32;        // of a plan; of one with more there are no bytes by row

  /// Without a record.
  step_record() = default;
  /// On all ranks, in memory of the run.
  step_record(const options& settings, rank_run& run);

  [[nodiscard]] bool any() const noexcept { return actions_ > 0; }

  /// On the rank that is shown, whose plan has `rows`: from now on notes what the trainer has leased after each action.
  /// Both outlive the last step.
  void watch(rank_trainer& trainer, const std::vector<belay::report_row>& rows);
  void given(std::size_t number) override;

  /// After a step. Collective over the world.
  void gather(rank_trainer& trainer);

  /// When a rank of the first pipeline began and ended an action, in nanoseconds of its clock.
  [[nodiscard]] double begin(std::size_t rank, std::size_t action) const { return times_[at(rank, action)]; }
  [[nodiscard]] double end(std::size_t rank, std::size_t action) const { return times_[at(rank, action) + 1]; }
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

  [[nodiscard]] std::size_t at(std::size_t rank, std::size_t action) const noexcept {
    return 2 * (actions_ * rank + action);
  }
  // The row of each lease; leases for as long as the run are made before its first step.
  void find_places(const rank_run& run);
  // Of several in one place that with most bytes.
  void note(const rank_run& run, std::size_t moment);

  std::size_t actions_ = 0;    // of the rank with most
  std::size_t own_ = 0;        // of this rank
  rank_run* shown_ = nullptr;  // where it is this rank's
  std::span<double> all_;
  std::span<double> times_;    // [rank of the pipeline][action][2]
  std::span<double> moments_;  // [moment][row, then open obligations], of the shown rank
  std::vector<double> kept_;   // the same while the step runs, on that rank
  std::vector<belay::report_row> rows_;
  std::size_t leases_ = 0;
  std::vector<std::size_t> place_of_;  // the row of each lease of the run; most_rows: none
  double now_[width] = {};
};

}  // namespace train_moe
