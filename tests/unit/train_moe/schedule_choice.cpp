// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/schedule_choice.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/device/tier.hpp"
#include "train_moe/run_schedule.hpp"
#include "train_moe/schedule_probe.hpp"

namespace {

using train_moe::options;

options run_of(int ranks, const std::string& schedule, std::size_t micro_batches = 8) {
  options run;
  run.mesh = {.pipeline = ranks};
  run.schedule = schedule;
  run.micro_batches = micro_batches;
  run.model.layers = 8;
  return run;
}

std::string refusal(const std::string& text) {
  try {
    static_cast<void>(train_moe::costs_of_text(text, 4));
  } catch (const belay::input_error& problem) {
    return problem.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the costs of a file are those of any cut of the model, to the unit") {
  const train_moe::layer_costs costs = train_moe::costs_of_text("belay-costs 1,7\n10,11,13\r\n20,0,1\r\n\n", 5);
  CHECK(costs.message == 7);
  REQUIRE(costs.layers.size() == 5);  // three in the first row, two in the second
  const auto whole = costs.of_stages({3, 2});
  CHECK(whole.stages[0].forward == 10);
  CHECK(whole.stages[0].weight_gradient == 13);
  CHECK(whole.stages[1].input_gradient == 0);
  const auto apart = costs.of_stages({1, 1, 3});
  CHECK(apart.stages[0].forward + apart.stages[1].forward + apart.stages[2].forward == 30);
}

TEST_CASE("a file of costs that cannot be read is refused with its row") {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "row 1: expected 'belay-costs 1,MESSAGE'"},
           {"1,2,3\n", "row 1: expected 'belay-costs 1,MESSAGE'"},
           {"belay-costs 1,\n1,2,3\n", "row 1: '' is no whole number"},
           {"belay-costs 1,2\n", "no stage has costs"},
           {"belay-costs 1,2\n0,0,0\n0,0,0\n", "no stage takes any time"},
           {"belay-costs 1,2\n1,2,3\n1,2\n", "row 3: expected F,I,W of a stage"},
           {"belay-costs 1,2\n1,2,-3\n", "row 2: '-3' is no whole number from 0 to 1000000000"},
           {"belay-costs 1,2\n1,2,3.5\n", "row 2: '3.5' is no whole number"},
           {"belay-costs 1,2\n1,2,3\n\n1,2,3\n", "row 3: '' is no whole number"},
           {"belay-costs 1,2\n1,1,1\n1,1,1\n1,1,1\n1,1,1\n1,1,1\n",
            "row 6: more stages than the model has layers (4)"}}) {
    CAPTURE(text);
    CHECK(refusal(text).find(part) != std::string::npos);
  }
}

TEST_CASE("every rank that chooses alone chooses the same table, the shortest") {
  options one = run_of(4, "auto"), other = run_of(4, "auto");
  const train_moe::schedule_choice choice = choose_schedule(one, ""), again = choose_schedule(other, "");
  CHECK(one.schedule == other.schedule);
  CHECK(one.schedule == choice.tables.front().name);
  CHECK(choice.costs.layers.back().forward > choice.costs.layers.front().forward);  // the head
  REQUIRE(choice.tables.size() == again.tables.size());
  CHECK(choice.tables.back().name == "v-min");  // whatever it takes
  for (std::size_t i = 1; i < choice.tables.size(); ++i) {
    if (i + 1 < choice.tables.size()) CHECK(choice.tables[i].total >= choice.tables[i - 1].total);
    CHECK(choice.tables[i].name == again.tables[i].name);
  }
}

TEST_CASE("refused are all tables but the one that is taken, with which those that were not tried are compared") {
  options run = run_of(4, "auto");
  train_moe::schedule_choice choice = choose_schedule(run, "");
  REQUIRE(choice.tables.size() > 4);
  const std::string first = choice.tables[0].name;
  choice.refuse(0, "needs more");
  choice.take(1, run);
  bool first_is_told = false;
  for (const auto& each : choice.not_taken()) {
    CAPTURE(each.name);
    CHECK(each.name != run.schedule);
    if (each.name == first) first_is_told = each.reason == "needs more";
    if (each.name == choice.tables[2].name) CHECK(each.reason.find(run.schedule) != std::string::npos);
  }
  CHECK(first_is_told);
  CHECK(choice.not_taken().size() == choice.tables.size() - 1 + choice.refused.size() - 1);
}

TEST_CASE("each table of a choice is one that the run can have") {
  for (const char* const asked : {"auto", "greedy"}) {
    options run = run_of(4, asked);
    train_moe::schedule_choice choice = choose_schedule(run, "");
    CHECK(choice.tables.size() >= 4);
    for (std::size_t i = 0; i < choice.tables.size(); ++i) {
      choice.take(i, run);
      CAPTURE(run.schedule);
      CHECK(layers_of_stages(run, schedule_of(run).stages()).size() % 4 == 0);
    }
  }
}

TEST_CASE("a probe has one layer a stage and nothing beside its steps, and its stages stand for all layers") {
  train_moe::command_line line;
  line.run = run_of(3, "auto");
  line.run.mesh.data = 2;
  line.run.optimizer_tier = belay::tier::host;
  line.run.checkpoint.folder = line.json = line.eval = line.import_from = "somewhere";
  line.choice = choose_schedule(line.run, "");
  REQUIRE(is_probed(line));
  const train_moe::command_line probe = probe_of(line);
  CHECK(probe.run.model.layers == 3);
  CHECK(schedule_of(probe.run).stages() == 3);
  CHECK(probe.run.schedule == "zb-h1");
  CHECK(probe.run.optimizer_tier == belay::tier::device);
  CHECK((probe.run.checkpoint.folder + probe.json + probe.eval + probe.import_from).empty());
  CHECK_FALSE(is_probed(probe));

  const train_moe::layer_costs costs = train_moe::costs_of_probe("belay-costs 1,0\n9,1,1\n5,2,2\n7,3,3\n", 3, 5);
  REQUIRE(costs.layers.size() == 5);
  CHECK(costs.layers[0].forward == 9);
  for (std::size_t layer = 1; layer < 4; ++layer) CHECK(costs.layers[layer].forward == 5);
  CHECK(costs.layers[4].weight_gradient == 3);
  CHECK(train_moe::costs_of_probe("belay-costs 1,0\n9,1,1\n7,3,3\n", 2, 3).layers[1].forward == 9);
}

TEST_CASE("what is probed is kept once, and nothing where no rank has measured") {
  train_moe::probed_costs costs;
  CHECK_FALSE(costs.text());
  costs.set("first");
  costs.set("second");
  CHECK(costs.text() == "first");
  train_moe::probed_costs long_ones;
  long_ones.set(std::string((std::size_t{1} << 20U) + 1, '1'));
  CHECK_FALSE(long_ones.text());
}
