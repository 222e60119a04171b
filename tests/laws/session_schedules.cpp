// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whole runs of the trainer whose ranks hold several stages: evaluations, rollouts, checkpoints and lines do not care
// on which rank the first stage is, and the last.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "belay/train/plan.hpp"
#include "laws/support/session.hpp"

using namespace sessions_bench;

namespace {

using words = std::vector<std::string>;

words joined(words all, const words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Two ranks of two stages, of which the second rank has the first stage and the last.
std::string turned_table() {
  const std::string row = "F0,F1,F2,F3,F0.1,F1.1,F2.1,F3.1,B0.1,B1.1,B2.1,B3.1,B0,B1,B2,B3\n";
  return "belay-schedule 2,turned,2,4,2,1 2;0 3\n" + row + row;
}

class schedule_folder : public folder {
 public:
  schedule_folder() {
    std::string model = bytes_of(file("model.json"));
    const std::string layers = "\"num_hidden_layers\": 2";
    model.replace(model.find(layers), layers.size(), "\"num_hidden_layers\": 4");
    std::ofstream(file("model.json")) << model;
    std::ofstream(file("turned.csv")) << turned_table();
  }
};

}  // namespace

TEST_CASE("evaluations, rollouts and curves are those of one rank, wherever the stages lie") {
  const schedule_folder in;
  const words flags{"--model",  in.file("model.json"),      "--steps", "4",
                    "--phases", "train=2,eval=1,rollout=2", "--eval",  in.file("text")};
  const outcome alone = run(in, joined(flags, {"--mesh", "pp=1"}));
  REQUIRE(alone.steps.size() == 4);
  for (const words& more : std::vector<words>{
           {"--mesh", "pp=1", "--schedule", "interleaved:2", "--stage-layers", "0,4"},
           {"--mesh", "pp=2", "--schedule", "interleaved:2", "--recompute", "full"},
           {"--mesh", "pp=2", "--schedule", "bfs:2", "--stage-layers", "0,2,1,1", "--offload", "activations"},
           {"--mesh", "pp=2", "--schedule", in.file("turned.csv"), "--zero", "3"},
           {"--mesh", "pp=2", "--schedule", "zb-v", "--zero", "3", "--recompute", "selective"},
           {"--mesh", "pp=3"}}) {
    const outcome got = run(in, joined(flags, more));
    CAPTURE(got.summary["config"].dump());
    REQUIRE(got.code == 0);
    REQUIRE(got.steps.size() == 4);
    for (std::size_t s = 0; s < 4; ++s) {
      for (const char* field : {"loss", "aux_loss", "grad_norm", "expert_tokens"})
        CHECK(got.steps[s][field] == alone.steps[s][field]);
      CHECK(got.steps[s]["peak_bytes"] == got.steps[s]["planned_bytes"]);
      CHECK(got.steps[s]["allocations"]["heap"] == 0);
      CHECK(got.steps[s]["bubble_predicted"].is_number());
    }
    CHECK(got.summary["eval_loss"] == alone.summary["eval_loss"]);
    REQUIRE(got.phases.size() == alone.phases.size());
    for (std::size_t i = 0; i < got.phases.size(); ++i)
      for (const char* field : {"loss", "text", "lengths"})
        if (alone.phases[i].contains(field)) CHECK(got.phases[i][field] == alone.phases[i][field]);
  }
}

TEST_CASE("a checkpoint of one schedule goes on under another, and the summary says which layers a stage has") {
  const schedule_folder in;
  const words flags{"--model", in.file("model.json"), "--checkpoint", in.file("saved"), "--checkpoint-every", "2"};
  const words chunked{"--mesh", "pp=2", "--schedule", "interleaved:2"};
  const outcome whole = run(in, joined({"--model", in.file("model.json"), "--steps", "6"}, chunked));
  const outcome first = run(in, joined(joined(flags, {"--steps", "2"}), chunked));
  CHECK(first.summary["config"]["schedule"] == "interleaved:2");
  CHECK(first.summary["config"]["chunks"] == 2);
  CHECK(first.summary["config"]["stage_layers"] == nlohmann::json{1, 1, 1, 1});
  const outcome second = run(in, joined(flags, {"--steps", "4", "--resume", "--mesh", "pp=2", "--schedule",
                                                in.file("turned.csv"), "--stage-layers", "1,1,2,0"}));
  CHECK(second.summary["config"]["stage_layers"] == nlohmann::json{1, 1, 2, 0});
  const outcome third = run(in, joined(flags, {"--steps", "6", "--resume", "--mesh", "pp=1"}));
  REQUIRE(second.steps.size() == 2);
  REQUIRE(third.steps.size() == 2);
  for (std::size_t s = 0; s < 2; ++s) {
    CHECK(second.steps[s]["loss"] == whole.steps[2 + s]["loss"]);
    CHECK(third.steps[s]["loss"] == whole.steps[4 + s]["loss"]);
    CHECK(third.steps[s]["grad_norm"] == whole.steps[4 + s]["grad_norm"]);
  }
}

TEST_CASE("a schedule that is chosen gives the bits of one rank, and the summary says why it was taken") {
  const schedule_folder in;
  std::ofstream(in.file("costs")) << "belay-costs 1,1\n10,10,10\n10,10,10\n10,10,10\n10,10,30\n";
  const words flags{"--model", in.file("model.json"), "--steps", "2", "--micro-batches", "8"};
  const outcome alone = run(in, joined(flags, {"--mesh", "pp=1", "--schedule", "auto"}));
  REQUIRE(alone.steps.size() == 2);
  CHECK(alone.summary["config"]["schedule"] == "1f1b");
  CHECK(alone.summary["schedule_choice"]["asked"] == "auto");
  for (const words& more : std::vector<words>{{"--schedule", "auto", "--zero", "1"},
                                              {"--schedule", "auto", "--schedule-costs", in.file("costs")},
                                              {"--schedule", "greedy", "--schedule-costs", in.file("costs")},
                                              {"--schedule", "greedy", "--stage-layers", "3,1"}}) {
    const outcome got = run(in, joined(joined(flags, {"--mesh", "pp=2"}), more));
    CAPTURE(got.summary.dump());
    REQUIRE(got.steps.size() == 2);
    for (std::size_t s = 0; s < 2; ++s)
      for (const char* field : {"loss", "grad_norm"}) CHECK(got.steps[s][field] == alone.steps[s][field]);
    const nlohmann::json& choice = got.summary["schedule_choice"];
    CHECK(choice["asked"] == more[1]);
    CHECK(choice["by"] ==
          (more.back() == in.file("costs") ? "the costs of " + in.file("costs") : "a probe of each kind of layer"));
    CHECK(choice["schedule"] == got.summary["config"]["schedule"]);
    CHECK(choice["layers"].size() == 4);
    CHECK(choice["message"] > 0);
    for (const nlohmann::json& other : choice["refused"])
      if (other["total"].is_number()) CHECK(other["total"] >= choice["total"]);
    // The next run may choose by it.
    const auto& measured = got.summary["measured_costs"];
    CHECK(measured.is_null() == (more[2] == "--stage-layers"));
    if (measured.is_null()) continue;
    std::ofstream(in.file("measured")) << measured.get<std::string>();
    CHECK(run(in, joined(flags, {"--mesh", "pp=2", "--schedule", "auto", "--schedule-costs", in.file("measured")}))
              .steps.size() == 2);
  }
}

TEST_CASE("auto takes the next table where the plan of a shorter one is over the budget") {
  const schedule_folder in;
  std::ofstream(in.file("costs")) << "belay-costs 1,1\n10,10,10\n10,10,10\n10,10,10\n10,10,30\n";
  const words flags{"--model", in.file("model.json"), "--steps",       "1", "--micro-batches", "8", "--mesh",
                    "pp=2",    "--schedule-costs",    in.file("costs")};
  const outcome free = run(in, joined(flags, {"--schedule", "auto"}));
  REQUIRE(free.steps.size() == 1);
  const auto most = free.steps[0]["planned_bytes"]["device"].get<std::vector<std::size_t>>();
  const std::size_t limit = *std::max_element(most.begin(), most.end()) - 1;
  const outcome tight = run(in, joined(flags, {"--schedule", "auto", "--budget", "device=" + std::to_string(limit)}));
  REQUIRE(tight.steps.size() == 1);
  CHECK(tight.steps[0]["loss"] == free.steps[0]["loss"]);
  CHECK(tight.summary["schedule_choice"]["schedule"] != free.summary["schedule_choice"]["schedule"]);
  CHECK(tight.summary["schedule_choice"]["refused"].back()["reason"].get<std::string>().starts_with("needs "));
  CHECK_THROWS_AS(run(in, joined(flags, {"--schedule", "auto", "--budget", "device=1000"})), belay::plan_refused);
}

TEST_CASE("a schedule that the run cannot have ends it with 2 before anything runs") {
  const schedule_folder in;
  std::ofstream(in.file("cut.csv")) << turned_table().substr(0, 100);
  for (const words& flags : std::vector<words>{{"--schedule", "interleaved"},
                                               {"--schedule", "interleaved:3"},    // 6 stages of 4 layers
                                               {"--schedule", "interleaved:2:1"},  // for two ranks
                                               {"--schedule", "dualpipe-v", "--micro-batches", "3"},
                                               {"--schedule", in.file("cut.csv")},
                                               {"--schedule", in.file("turned.csv"), "--micro-batches", "8"},
                                               {"--schedule", "nowhere.csv"},
                                               {"--schedule", "auto", "--schedule-costs", in.file("cut.csv")},
                                               {"--schedule", "greedy", "--schedule-costs", in.file("nowhere")},
                                               {"--schedule-costs", in.file("cut.csv")},
                                               {"--schedule", "auto", "--stage-layers", "3,1"},
                                               {"--stage-layers", "1,2"},
                                               {"--stage-layers", "1,3,"},
                                               {"--stage-layers", "1,1,2"}}) {
    CAPTURE(flags[1]);
    const outcome got = run(in, joined({"--model", in.file("model.json"), "--mesh", "pp=2"}, flags));
    CHECK(got.code == 2);
    CHECK(got.steps.empty());
  }
}
