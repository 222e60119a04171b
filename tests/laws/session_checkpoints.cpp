// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whole runs of the trainer that are saved and resumed, that offload, or whose plan is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/train/plan.hpp"
#include "laws/support/session.hpp"

using namespace sessions_bench;

TEST_CASE("a session that is resumed prints the lines of one that did not end, its phases too") {
  const folder in;
  const auto train = [&](const char* saved, const char* steps, std::vector<std::string> more) {
    std::vector<std::string> flags{"--model", in.file("model.json"), "--mesh", "pp=2,ep=2", "--steps", steps};
    for (const char* flag : {"--phases", "train=2,eval=1,rollout=1", "--eval"}) flags.emplace_back(flag);
    flags.push_back(in.file("text"));
    for (const std::string& flag : {std::string("--checkpoint"), in.file(saved)}) flags.push_back(flag);
    flags.insert(flags.end(), more.begin(), more.end());
    return run(in, flags);
  };
  const outcome whole = train("a", "6", {"--resume"});
  CHECK(whole.summary["resumed_from"] == 0);
  REQUIRE(whole.steps.size() == 6);
  REQUIRE(train("b", "5", {"--checkpoint-every", "3", "--keep", "1"}).code == 0);
  CHECK_THROWS_AS(static_cast<void>(train("b", "6", {})), belay::input_error);
  const outcome rest = train("b", "6", {"--resume", "--export", in.file("of b")});
  CHECK(rest.summary["resumed_from"] == 3);
  REQUIRE(rest.steps.size() == 3);
  for (std::size_t s = 0; s < 3; ++s) {
    CHECK(rest.steps[s]["step"] == 4 + s);
    CHECK(rest.steps[s]["loss"] == whole.steps[3 + s]["loss"]);
    CHECK(rest.steps[s]["grad_norm"] == whole.steps[3 + s]["grad_norm"]);
  }
  CHECK(rest.summary["eval_loss"] == whole.summary["eval_loss"]);
  std::vector<nlohmann::json> expected, got;
  for (const auto& each : whole.phases)
    if (each["after_step"] > 3 && each.contains("phase")) expected.push_back(each);
  for (const auto& each : rest.phases)
    if (each.contains("phase")) got.push_back(each);
  CHECK(expected.size() == 4);
  CHECK(got == expected);
  // The learning rate may be another: the first step has the same loss, and trains otherwise.
  const outcome faster = train("b", "6", {"--resume", "--lr", "1e-2"});
  CHECK(faster.summary["resumed_from"] == 3);
  REQUIRE(faster.steps.size() == 3);
  CHECK(faster.steps[0]["loss"] == whole.steps[3]["loss"]);
  CHECK(faster.steps[2]["loss"] != whole.steps[5]["loss"]);
  // Another batch, text or model is another run.
  CHECK_THROWS_AS(static_cast<void>(train("b", "7", {"--resume", "--seed", "2"})), belay::input_error);
  const auto refused = [&](const std::string& model, const char* micro_batches, const char* size) {
    std::vector<std::string> flags{"train_moe", "--sequence", "16", "--steps", "7", "--mesh", "pp=2,ep=2", "--resume"};
    for (const std::string& flag :
         {std::string("--phases"), std::string("train=2,eval=1,rollout=1"), std::string("--eval"), in.file("text"),
          std::string("--data"), in.file("text"), std::string("--checkpoint"), in.file("b"), std::string("--model"),
          model, std::string("--micro-batches"), std::string(micro_batches), std::string("--micro-batch-size"),
          std::string(size)})
      flags.push_back(flag);
    try {
      static_cast<void>(run_with(flags));
    } catch (const belay::error& problem) {
      return std::string(problem.what());
    }
    return std::string("not refused");
  };
  // `model.json` with one number changed.
  const auto model_with = [&](const std::string& number, const char* instead) {
    std::string text = bytes_of(in.file("model.json"));
    text.replace(text.find(number), number.size(), instead);
    std::ofstream(in.file("other.json")) << text;
    return in.file("other.json");
  };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(contains(refused(model_with("\"intermediate_size\": 24", "\"intermediate_size\": 32"), "4", "4"),
                 "experts.w13 is 4x48x16, the model's is 4x64x16"));
  CHECK(contains(refused(model_with("\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 1"), "4", "4"),
                 "disagree: num_experts_per_tok"));
  CHECK(contains(refused(in.file("model.json"), "8", "4"), "was written with --micro-batches 4, this run has 8"));
  CHECK(contains(refused(in.file("model.json"), "4", "8"), "--micro-batches x --micro-batch-size 16, this run has 32"));
  std::ofstream(in.file("text"), std::ios::app) << "and more";
  CHECK_THROWS_AS(static_cast<void>(train("b", "7", {"--resume"})), belay::input_error);
}

TEST_CASE("state of the optimizer in a lower tier: the same curve, and budgets of its own") {
  const folder in;
  const std::vector<std::string> flags{"--model", in.file("model.json"), "--mesh", "dp=2", "--steps", "3"};
  const outcome resident = run(in, flags);
  std::vector<std::string> lower = flags;
  for (const char* flag : {"--offload", "optimizer", "--tier", "pinned", "--budget"}) lower.emplace_back(flag);
  const std::size_t device = resident.steps[2]["planned_bytes"]["device"][0];
  lower.push_back("device=" + std::to_string(device));
  const outcome got = run(in, lower);
  REQUIRE(got.steps.size() == 3);
  const std::size_t moved = got.steps[2]["offloaded_bytes"]["pinned"];
  CHECK(moved > 0);
  CHECK(resident.steps[2]["offloaded_bytes"]["pinned"] == 0);
  for (std::size_t s = 0; s < 3; ++s) {
    CHECK(got.steps[s]["loss"] == resident.steps[s]["loss"]);
    CHECK(got.steps[s]["peak_bytes"] == got.steps[s]["planned_bytes"]);
    CHECK(got.steps[s]["hidden_copy_share"] == 0);
    CHECK(std::size_t(got.steps[s]["planned_bytes"]["device"][0]) + moved <= device + 4096);
  }
  // To the byte, of state and of the ring through which it streams.
  const auto with = [&](std::size_t bytes) {
    std::vector<std::string> limited = lower;
    limited.back() = "pinned=" + std::to_string(bytes);
    return run(in, limited).code;
  };
  std::size_t planned = 0;
  try {
    static_cast<void>(with(0));
  } catch (const belay::plan_refused& refusal) {
    planned = refusal.shortage().needed_bytes;
  }
  CHECK(planned > moved);
  CHECK(with(planned) == 0);
  CHECK_THROWS_AS(static_cast<void>(with(planned - 1)), belay::plan_refused);
}

TEST_CASE("a session offloads what it names, into the tiers that it names, within their budgets") {
  const folder in;
  const std::vector<std::string> flags{"--model", in.file("model.json"), "--mesh", "dp=2", "--steps", "3", "--zero",
                                       "3"};
  const outcome resident = run(in, flags);
  std::vector<std::string> lower = flags;
  for (const std::string& flag :
       {std::string("--offload"), std::string("optimizer,parameters,gradients:file,activations"), std::string("--tier"),
        std::string("file"), std::string("--tier-dir"), std::string("/tmp"), std::string("--budget")})
    lower.push_back(flag);
  lower.emplace_back("file=1GiB,host=1GiB");
  const outcome got = run(in, lower);
  REQUIRE(got.steps.size() == 3);
  for (std::size_t s = 0; s < 3; ++s) {
    CHECK(got.steps[s]["loss"] == resident.steps[s]["loss"]);
    CHECK(got.steps[s]["peak_bytes"] == got.steps[s]["planned_bytes"]);
  }
  const nlohmann::json moved = got.steps[2]["offloaded_bytes"];
  CHECK(moved["file"] > 0);
  for (const char* const field : {"live_bytes", "peak_bytes", "planned_bytes"}) {
    CHECK(resident.steps[2][field].size() == 2);
    CHECK(got.steps[2][field].size() == 3);
    REQUIRE(got.steps[2][field]["file"].size() == 2);  // ranks
    for (const std::size_t bytes : got.steps[2][field]["file"]) CHECK(bytes > 0);
  }
  CHECK(got.summary["config"]["offload"] == "optimizer:file,parameters:file,gradients:file,activations:file");
  lower.back() = "file=" + std::to_string(std::size_t(moved["file"]));
  CHECK(run(in, lower).code == 0);
  lower.back() = "file=" + std::to_string(std::size_t(moved["file"]) - 1);
  CHECK_THROWS_AS(static_cast<void>(run(in, lower)), belay::plan_refused);
}

TEST_CASE("a session whose state lies in files is saved, and resumed there or on other ranks without files") {
  const folder in;
  const auto train = [&](const char* mesh, const char* steps, std::vector<std::string> more) {
    std::vector<std::string> flags{"--model", in.file("model.json"), "--mesh", mesh, "--steps", steps, "--zero", "3"};
    flags.insert(flags.end(), more.begin(), more.end());
    return run(in, flags);
  };
  const std::vector<std::string> in_files{"--offload", "optimizer:file,parameters:file,gradients:file", "--tier-dir",
                                          in.file("")};
  const auto saved = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--checkpoint", in.file("saved"), "--resume", "--checkpoint-every", "2"});
    return more;
  };
  const outcome whole = train("dp=2", "6", {});
  REQUIRE(train("dp=2", "2", saved(in_files)).code == 0);
  const outcome there = train("dp=2", "4", saved(in_files));
  const outcome elsewhere = train("ep=2,dp=2", "6", saved({}));
  CHECK(there.summary["resumed_from"] == 2);
  CHECK(elsewhere.summary["resumed_from"] == 4);
  REQUIRE(there.steps.size() == 2);
  REQUIRE(elsewhere.steps.size() == 2);
  for (std::size_t s = 0; s < 2; ++s) {
    CHECK(there.steps[s]["loss"] == whole.steps[2 + s]["loss"]);
    CHECK(there.steps[s]["grad_norm"] == whole.steps[2 + s]["grad_norm"]);
    CHECK(double(elsewhere.steps[s]["loss"]) == doctest::Approx(double(whole.steps[4 + s]["loss"])).epsilon(1e-5));
  }
}

TEST_CASE("sizes that are together more than any plan holds are refused with their flags and the bytes") {
  const folder in;
  std::vector<std::string> words{
      "train_moe",       "--data", in.file("text"),      "--mesh", "dp=2",    "--sequence", "4096",
      "--micro-batches", "2",      "--micro-batch-size", "65536",  "--steps", "1"};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  int code = 0;
  const auto line = train_moe::parse(static_cast<int>(pointers.size()), pointers.data(), code);
  REQUIRE(line);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(train_moe::run_session(*line, pointers.data())),
      doctest::Contains("--sequence 4096, --micro-batch-size 65536 and --micro-batches 2 are together"),
      belay::input_error);
}

TEST_CASE("a refused plan proposes an --offload, which is accepted and trains alike, or says that none fits") {
  const folder in;
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> flags{"--model", in.file("model.json"), "--mesh", "dp=2", "--zero", "3", "--steps", "2"};
    flags.insert(flags.end(), more.begin(), more.end());
    return run(in, flags);
  };
  const auto refusal_of = [&](const std::string& budget) -> std::string {
    try {
      static_cast<void>(train({"--budget", budget}));
    } catch (const belay::plan_refused& refusal) {
      return refusal.what();
    }
    return "";
  };
  const outcome resident = train({});
  std::size_t planned = 0;
  for (const std::size_t bytes : resident.steps[0]["planned_bytes"]["device"]) planned = std::max(planned, bytes);
  const std::string less = "device=" + std::to_string(planned - 1);
  for (const std::string& budget :
       {less, less + ",pinned=1000", less + ",pinned=1000,host=80000", std::string("device=330000,pinned=100000")}) {
    INFO(budget);
    const std::string text = refusal_of(budget);
    const std::size_t begin = text.find("  - --offload "), end = text.find(": fits, rehearsed", begin);
    REQUIRE(end != std::string::npos);
    std::istringstream words(text.substr(begin + 4, end - begin - 4));
    std::vector<std::string> flags{"--budget", budget};
    for (std::string word; words >> word;) flags.push_back(word);
    INFO(text.substr(begin, end - begin));
    const outcome got = train(flags);
    REQUIRE(got.steps.size() == 2);
    for (std::size_t s = 0; s < 2; ++s) CHECK(got.steps[s]["loss"] == resident.steps[s]["loss"]);
  }
  CHECK(refusal_of("device=1000").find("no --offload that was tried fits: with optimizer:pinned,") !=
        std::string::npos);
}

TEST_CASE("what cannot be offloaded is refused with the flag that would help") {
  const folder in;
  const auto refused = [&](std::vector<std::string> more) {
    std::vector<std::string> flags{"--model", in.file("model.json"), "--mesh", "dp=2", "--steps", "1"};
    flags.insert(flags.end(), more.begin(), more.end());
    CHECK(run(in, flags).code == 2);
  };
  refused({"--offload", "parameters"});
  refused({"--offload", "gradients"});
  refused({"--offload", "parameters:file", "--zero", "3"});
  refused({"--offload", "parameters:file", "--zero", "2", "--tier-dir", "/tmp"});
  refused({"--offload", "optimizer:file"});
  refused({"--phase-tier", "file", "--phases", "train=1,eval=1"});
  refused({"--tier-dir", "/tmp"});
  refused({"--offload", "optimizer,optimizer:host"});
  refused({"--offload", "weights"});
  refused({"--offload", "optimizer:disk"});
  refused({"--offload", "parameters", "--zero", "3", "--shard-group", "1"});
  const auto offloads = [](const char* text) {
    train_moe::options run;
    train_moe::parse_offload(text, "host", run);
    train_moe::check(run);
  };
  CHECK_THROWS_WITH_AS(offloads("parameters"), doctest::Contains("take --zero 3"), belay::input_error);
  CHECK_THROWS_WITH_AS(offloads("gradients"), doctest::Contains("take one of these"), belay::input_error);
  CHECK_THROWS_WITH_AS(offloads("activations:disk"), doctest::Contains("not 'disk'"), belay::input_error);
  CHECK_THROWS_WITH_AS(offloads("optimizer:file"), doctest::Contains("--tier-dir DIR"), belay::input_error);
  CHECK_THROWS_WITH_AS(offloads("optimizer,optimizer"), doctest::Contains("names optimizer twice"), belay::input_error);
  CHECK_THROWS_WITH_AS(offloads("weights"), doctest::Contains("not 'weights'"), belay::input_error);
}

TEST_CASE("a refusal says that no flag alone is enough, what each would need, and of --gathers the other") {
  const folder in;
  const auto refused = [&](std::vector<std::string> flags) {
    for (const std::string& flag : {std::string("--model"), in.file("model.json"), std::string("--budget")})
      flags.push_back(flag);
    flags.emplace_back("device=1000");
    try {
      static_cast<void>(run(in, flags));
    } catch (const belay::plan_refused& refusal) {
      return std::string(refusal.what());
    }
    return std::string();
  };
  const std::string grouped =
      refused({"--mesh", "dp=4", "--zero", "2", "--shard-group", "2", "--whole-below", "65536"});
  CHECK(grouped.find("none of these fits alone; the first needs least") != std::string::npos);
  for (const char* flag : {"--shard-group 0", "--whole-below 0", "--freeze experts", "--recompute full"}) {
    INFO(std::string(flag));
    CHECK(advised(grouped, flag, "needs ") > 1000);
  }
  const std::string use = refused({"--mesh", "dp=2", "--zero", "3"});
  const std::string step = refused({"--mesh", "dp=2", "--zero", "3", "--gathers", "step"});
  CHECK(advised(step, "--gathers use", "needs ") > 1000);
  CHECK(advised(step, "--gathers use", "needs ") < advised(use, "--gathers step", "needs "));
}
