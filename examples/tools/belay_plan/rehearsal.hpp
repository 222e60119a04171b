// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The plan of train_moe itself, where the model is one that it trains.
#pragma once

#include <string>
#include <vector>

#include "tools/belay_plan/config.hpp"
#include "tools/belay_plan/plan.hpp"

namespace belay_plan {

/// Makes plans of one model.
class planner {
 public:
  planner(config_text config, const time_constants& with)
      : config_(std::move(config)), model_(config_reader::read(config_)), with_(with) {}

  [[nodiscard]] const architecture& model() const noexcept { return model_; }

  /// Why no run of the model can be rehearsed; empty where it can.
  [[nodiscard]] std::string why_not(const setting& run) const;

  /// The schedules that --fit searches on a pipeline: of a model that train_moe trains, those that it runs.
  [[nodiscard]] std::vector<std::string> searched_schedules() const;

  /// The rehearsal of a Mixtral that train_moe can run, else formulas, with the reason. `run` is checked.
  [[nodiscard]] plan_result plan(const setting& run) const;

 private:
  config_text config_;
  architecture model_;
  time_constants with_;
};

}  // namespace belay_plan
