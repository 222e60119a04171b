// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// belay-plan: what a training run would need of every tier, rank by rank, before anything is allocated; or which
// settings of so many ranks fit a budget, and how fast they would be.
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/report/output.hpp"
#include "belay/train/plan_table.hpp"
#include "input/problem_text.hpp"
#include "tools/belay_plan/config.hpp"
#include "tools/belay_plan/fit.hpp"
#include "tools/belay_plan/flags.hpp"
#include "tools/belay_plan/json.hpp"
#include "tools/belay_plan/picture.hpp"
#include "tools/belay_plan/rehearsal.hpp"
#include "tools/belay_plan/text.hpp"

namespace belay_plan {

namespace {

// Exit codes.
constexpr int planned = 0, failed = 1, misused = 2, does_not_fit = 3;

void put(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw std::runtime_error("the output cannot be written");
}
// ASCII alone: a terminal obeys none of it.
void put_json(const ordered_json& values) {
  put(values.dump(1, ' ', true, ordered_json::error_handler_t::replace) + "\n");
}
void complain(const std::string& what) { std::fprintf(stderr, "belay-plan: %s\n", what.c_str()); }
// What is written is none of what was given.
struct unwritable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a plan is short of; empty where it fits.
std::string shortage_text(const plan_result& plan, const belay::budget& limit) {
  const auto in = plan.shortage(limit);
  if (!in) return "";
  const rank_class& most = plan.fullest(*in);
  const count needed = most.total(*in);
  return std::string("tier ") + belay::name(*in) + ": rank " + ranks_text(most.ranks) + " needs " +
         std::to_string(needed) + " bytes (" + belay::bytes_text(needed) + "), the budget is " +
         std::to_string(limit[*in]) + " (" + belay::bytes_text(limit[*in]) + ")";
}

void draw(const question& asked, const plan_result& plan) {
  if (asked.svg.empty()) return;
  try {
    belay::output(asked.svg).write(plan_picture(plan, asked.limit).svg());
  } catch (const belay::file_error& problem) {
    throw unwritable(input::problem_words(problem));
  }
}

int show_plan(const question& asked, const planner& plans) {
  setting run = asked.run;
  std::optional<chosen_schedule> choice;
  if (run.schedule.is_chosen()) {
    try {
      choice = choose_schedule(plans.model(), run, asked.constants, asked.limit);
    } catch (const belay::usage_error& problem) {
      complain("--schedule " + asked.run.schedule.name + ": " + input::problem_words(problem) +
               ". Search what fits with --fit");
      return does_not_fit;
    }
  }
  plan_result plan = plans.plan(run);
  plan.choice = std::move(choice);
  draw(asked, plan);
  const std::string missing = shortage_text(plan, asked.limit);
  if (asked.format == question::output::json) {
    ordered_json out = json_of(plan);
    out["fits"] = missing.empty();
    put_json(out);
  } else {
    put(plan_text(plan, asked.limit).text());
  }
  if (missing.empty()) return planned;
  complain("the plan is over its budget. " + missing + ". Search what fits with --fit");
  return does_not_fit;
}

// A search that does not rehearse all that could fit says so.
std::string cut_text(const fit_result& result) {
  if (result.how == fit_result::end::all_tried) return "";
  return "the search ended after " + grouped(result.rehearsals) + " rehearsals: others may fit";
}

int show_fit(const question& asked, const planner& plans) {
  const fit_result result = fit::of(plans, asked);
  if (!result.found.empty()) draw(asked, result.found.front());
  if (asked.format == question::output::json) {
    ordered_json answers = ordered_json::array();
    for (const plan_result& each : result.found) {
      answers.push_back(json_of(each));
      answers.back()["flags"] = flags_of(each.run);
    }
    put_json({{"tried", result.tried},
              {"rehearsals", result.rehearsals},
              {"cut_short", result.how == fit_result::end::cut_short},
              {"fits", !result.found.empty()},
              {"answers", answers}});
  } else if (!result.found.empty()) {
    put(model_text(plans.model()) + grouped(result.tried) + " settings of " + grouped(*asked.ranks) +
        " ranks were tried, " + grouped(asked.run.global_batch) + " sequences of " + grouped(asked.run.sequence) +
        " tokens a step; predicted with " + constants_text(asked.constants) + "\n\n" +
        search_text(result.found, asked.limit) + (cut_text(result).empty() ? "" : cut_text(result) + "\n"));
  }
  if (!result.found.empty()) return planned;
  complain("nothing fits: of " + grouped(result.tried) + " settings of " + grouped(*asked.ranks) +
           " ranks what needs least of the device is " + flags_of(result.least.run) + ". " +
           shortage_text(result.least, asked.limit) +
           ". More --ranks, a larger budget, a shorter --sequence, or --tier with a larger budget there" +
           (cut_text(result).empty() ? "" : "; " + cut_text(result)));
  return does_not_fit;
}

int run(int argc, char** argv) {
  int exit_code = planned;
  std::optional<question> asked = parse(argc, argv, exit_code);
  if (!asked) return exit_code;
  const planner plans(config_of(asked->model), asked->constants);
  resolve(*asked, plans.model());
  return asked->what == question::question_kind::fit ? show_fit(*asked, plans) : show_plan(*asked, plans);
}

}  // namespace

}  // namespace belay_plan

int main(int argc, char** argv) try { return belay_plan::run(argc, argv); } catch (const std::exception& problem) {
  const belay::error_kind what = belay::kind_of(problem);
  const bool given = what == belay::error_kind::input || what == belay::error_kind::file;
  belay_plan::complain(input::problem_words(problem));
  return given ? belay_plan::misused : belay_plan::failed;
}
