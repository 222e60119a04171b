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
  std::size_t rehearsals = 0;
  enum class end { all_tried, cut_short } how = end::all_tried;
};

class fit {
 public:
  [[nodiscard]] static fit_result of(const planner& plans, const question& asked) { return fit(plans, asked).search(); }

 private:
  // What the formula finds by so much over the budget may still fit. Of samples it gave up to 1.15 of what the
  // rehearsal needs for mixtral-8x7b, and 1.49 for tiny and small, whose buckets count.
  [[nodiscard]] static double slack(const architecture& model) noexcept {
    return parameters_of(model) < 1'000'000'000 ? 1.6 : 1.25;
  }
  // Calls of layers in all rehearsals of a search: what takes some seconds.
  static constexpr count most_calls = count{1} << 15U;

  fit(const planner& plans, const question& asked) : plans_(&plans), asked_(&asked) {}

  [[nodiscard]] fit_result search() {
    const bool rehearses = plans_->model().type == "mixtral";
    plan_search search(plans_->model(), asked_->run, static_cast<count>(*asked_->ranks), asked_->limit,
                       asked_->constants, asked_->lower, plans_->searched_schedules());
    std::vector<candidate> all = search.run(rehearses ? slack(plans_->model()) : 1);
    out_.tried = search.tried();
    if (out_.tried == 0)
      throw belay::input_error("--global-batch " + std::to_string(asked_->run.global_batch) +
                               " cannot be divided by any mesh of " + std::to_string(*asked_->ranks) +
                               " ranks: take a multiple of " + std::to_string(*asked_->ranks));
    rehearsed_.resize(out_.tried);
    try_in_order(all, most_calls);
    if (out_.found.empty() && out_.how == fit_result::end::cut_short) {
      std::sort(all.begin(), all.end(), [](const candidate& a, const candidate& b) {
        return a.bytes != b.bytes ? a.bytes < b.bytes : a.number < b.number;
      });
      try_in_order(all, most_calls + most_calls / 2);
    }
    if (out_.found.empty()) out_.least = plans_->plan(search.least().run);
    return std::move(out_);
  }

  void try_in_order(const std::vector<candidate>& all, count most) {
    for (const candidate& each : all) {
      if (out_.found.size() == asked_->top) return;
      if (rehearsed_[each.number] || std::any_of(out_.found.begin(), out_.found.end(),
                                                 [&](const plan_result& one) { return same_shape(one.run, each.run); }))
        continue;
      if (calls_ >= most) {
        out_.how = fit_result::end::cut_short;
        return;
      }
      plan_result one = plans_->plan(each.run);
      if (one.rehearsed()) {
        rehearsed_[each.number] = true;
        ++out_.rehearsals;
        calls_ += calls_of(each.run);
      }
      if (!one.shortage(asked_->limit)) out_.found.push_back(std::move(one));
    }
  }
  // One rank of each stage is rehearsed, and what each rank owns is counted.
  [[nodiscard]] count calls_of(const setting& run) const noexcept {
    return plans_->model().layers * (run.micro_batches() + run.ranks() / 128 + 1);
  }

  const planner* plans_;
  const question* asked_;
  fit_result out_;
  std::vector<bool> rehearsed_;  // by the candidates' numbers
  count calls_ = 0;
};

}  // namespace belay_plan
