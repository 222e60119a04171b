// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one pipeline did in the last step, action by action, and what the rank that a page shows had leased meanwhile:
// exchanged after the step, for the rank that writes the page.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "belay/comm/reduction.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/schedule.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

class step_record {
 public:
  static constexpr std::size_t most_numbers = 16384;  // that ranks exchange; larger tables have no record

  /// Without a record.
  step_record() = default;
  /// On all ranks, in memory of the run.
  template <class Run>
  step_record(const options& settings, Run& run) {
    const belay::schedule::dynamic_table table = schedule_of(settings);
    for (std::size_t stage = 0; stage < table.stages(); ++stage)
      actions_ = std::max(actions_, table.actions(stage).size());
    const std::size_t numbers = 2 * actions_ * (table.stages() + 1);
    if (numbers > most_numbers) actions_ = 0;
    if (actions_ == 0) return;
    all_ = run.template lease<double>(belay::tier::host, numbers, "report");
    moments_.resize(2 * actions_);
  }

  [[nodiscard]] bool any() const noexcept { return actions_ > 0; }

  /// From now on notes what the trainer has leased after each action. Both outlive the last step.
  template <class Trainer>
  void watch(Trainer& trainer) {
    if (!any()) return;
    trainer.pipeline().watch_actions([this, &run = trainer.run()](std::size_t number) {
      moments_[2 * number] = static_cast<double>(run.meters()[belay::tier::device].live_bytes());
      moments_[2 * number + 1] = static_cast<double>(run.engine().obligations().open_count());
    });
  }

  /// After a step. Collective over the world.
  template <class Trainer>
  void gather(const Trainer& trainer, std::size_t shown_rank) {
    if (!any()) return;
    std::fill(all_.begin(), all_.end(), 0.0);
    const auto& place = trainer.mesh().coordinate();
    if (place.data == 0 && place.expert == 0) {
      double* out = &all_[2 * actions_ * (1 + static_cast<std::size_t>(place.pipeline))];
      for (const belay::executed_action& each : trainer.pipeline().executed()) {
        *out++ = static_cast<double>(each.begin);
        *out++ = static_cast<double>(each.end);
      }
    }
    if (static_cast<std::size_t>(trainer.mesh().control().rank()) == shown_rank)
      std::copy(moments_.begin(), moments_.end(), all_.begin());
    trainer.mesh().control().all_reduce(all_, belay::sum);
  }

  /// When a stage of the first pipeline began and ended an action, in nanoseconds of its clock.
  [[nodiscard]] double begin(std::size_t stage, std::size_t action) const { return all_[at(stage, action)]; }
  [[nodiscard]] double end(std::size_t stage, std::size_t action) const { return all_[at(stage, action) + 1]; }
  /// Bytes of tier device, and open obligations, of the shown rank after its action.
  [[nodiscard]] double live(std::size_t action) const { return all_[2 * action]; }
  [[nodiscard]] double open(std::size_t action) const { return all_[2 * action + 1]; }

 private:
  [[nodiscard]] std::size_t at(std::size_t stage, std::size_t action) const noexcept {
    return 2 * (actions_ * (stage + 1) + action);
  }

  std::size_t actions_ = 0;      // of the stage with most
  std::span<double> all_;        // [shown rank's moments, then each stage][action][2]
  std::vector<double> moments_;  // of this rank
};

}  // namespace train_moe
