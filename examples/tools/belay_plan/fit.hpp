// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Plans that fit a budget. Formulas find them; where the model can be rehearsed each answer is, so that it fits by the
// bytes that train_moe would lease.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tools/belay_plan/flags.hpp"
#include "tools/belay_plan/plan.hpp"
#include "tools/belay_plan/rehearsal.hpp"
#include "tools/belay_plan/search.hpp"

namespace belay_plan {

struct fit_result {
  std::vector<plan_result> found;  // fastest first, one of each mesh and micro-batch
  plan_result least;               // where none is: what needs least of the device
  std::size_t tried = 0;
};

class fit {
 public:
  [[nodiscard]] static fit_result of(const planner& plans, const question& asked) { return fit(plans, asked).search(); }

 private:
  static constexpr std::size_t most_rehearsals = 40;
  static constexpr double slack = 1.25;  // of formulas, where a rehearsal says what is so

  fit(const planner& plans, const question& asked) : plans_(&plans), asked_(&asked) {}

  [[nodiscard]] fit_result search() {
    const bool rehearses = plans_->model().type == "mixtral";
    plan_search search(plans_->model(), asked_->run, static_cast<count>(*asked_->ranks), asked_->limit,
                       asked_->constants, asked_->lower);
    std::vector<candidate> all = search.run(rehearses ? slack : 1);
    out_.tried = search.tried();
    if (out_.tried == 0)
      throw belay::input_error("--global-batch " + std::to_string(asked_->run.global_batch) +
                               " cannot be divided by any mesh of " + std::to_string(*asked_->ranks) +
                               " ranks: take a multiple of " + std::to_string(*asked_->ranks));
    try_in_order(all);
    if (out_.found.empty() && rehearses) {
      std::sort(all.begin(), all.end(), [](const candidate& a, const candidate& b) {
        return a.bytes != b.bytes ? a.bytes < b.bytes : a.number < b.number;
      });
      tried_ = most_rehearsals / 2;
      try_in_order(all);
    }
    if (out_.found.empty()) out_.least = plans_->plan(search.least().run);
    return std::move(out_);
  }

  void try_in_order(const std::vector<candidate>& all) {
    for (const candidate& each : all) {
      if (out_.found.size() == asked_->top || tried_ == most_rehearsals) return;
      if (std::any_of(out_.found.begin(), out_.found.end(),
                      [&](const plan_result& one) { return same_shape(one.run, each.run); }))
        continue;
      plan_result one = plans_->plan(each.run);
      if (one.rehearsed()) ++tried_;
      if (!one.shortage(asked_->limit)) out_.found.push_back(std::move(one));
    }
  }

  const planner* plans_;
  const question* asked_;
  fit_result out_;
  std::size_t tried_ = 0;  // rehearsals
};

}  // namespace belay_plan
