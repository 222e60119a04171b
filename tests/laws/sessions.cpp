// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whole runs of the trainer as its flags describe them: export, import, evaluation, budgets and the JSON lines.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "belay/train/plan.hpp"
#include "laws/support/session.hpp"
#include "laws/support/session_page.hpp"
#include "laws/support/session_trace.hpp"
#include "unit/report/support/event_reader.hpp"

using namespace sessions_bench;

TEST_CASE("an export imported on any mesh evaluates and trains as the exporter does") {
  const folder in;
  const outcome first = run(in, {"--model", in.file("model.json"), "--mesh", "pp=2,ep=2", "--steps", "3", "--export",
                                 in.file("a"), "--eval", in.file("text")});
  REQUIRE(first.code == 0);
  REQUIRE(first.steps.size() == 3);
  const double evaluated = first.summary["eval_loss"];
  CHECK(evaluated > 1);

  std::vector<double> curve;
  for (const char* mesh : {"pp=1", "pp=2,dp=2", "dp=4", "pp=2,ep=4"}) {
    INFO(mesh);
    const outcome again = run(in, {"--import", in.file("a"), "--mesh", mesh, "--steps", "0", "--eval", in.file("text"),
                                   "--export", in.file("b")});
    REQUIRE(again.code == 0);
    CHECK(again.steps.empty());
    CHECK(again.summary["final_loss"].is_null());
    CHECK(std::abs(double(again.summary["eval_loss"]) - evaluated) <= 1e-6 * evaluated);
    CHECK(bytes_of(in.file("a/model.safetensors")) == bytes_of(in.file("b/model.safetensors")));
    CHECK(bytes_of(in.file("a/config.json")) == bytes_of(in.file("b/config.json")));

    const outcome trained = run(in, {"--import", in.file("a"), "--mesh", mesh, "--steps", "3"});
    REQUIRE(trained.steps.size() == 3);
    for (std::size_t s = 0; s < 3; ++s) {
      if (curve.size() < 3) curve.push_back(trained.steps[s]["loss"]);
      CHECK(std::abs(double(trained.steps[s]["loss"]) - curve[s]) <= 1e-6 * curve[s]);
    }
  }
}

TEST_CASE("an export has the type that was chosen, either is imported into either, and half the bytes are half") {
  const folder in;
  const outcome narrow = run(in, {"--model", in.file("model.json"), "--mesh", "pp=2,ep=2", "--steps", "3", "--dtype",
                                  "bf16", "--export", in.file("bf16"), "--eval", in.file("text")});
  REQUIRE(narrow.code == 0);
  CHECK(narrow.summary["config"]["dtype"] == "bf16");
  for (const auto& step : narrow.steps) CHECK(step["peak_bytes"] == step["planned_bytes"]);
  CHECK(nlohmann::json::parse(bytes_of(in.file("bf16/config.json")))["dtype"] == "bfloat16");
  const double evaluated = narrow.summary["eval_loss"];

  // bf16 in float is exact: the way back has the same bytes.
  const outcome wide = run(in, {"--import", in.file("bf16"), "--mesh", "pp=1", "--steps", "0", "--dtype", "fp32",
                                "--eval", in.file("text"), "--export", in.file("fp32")});
  REQUIRE(wide.code == 0);
  CHECK(std::abs(double(wide.summary["eval_loss"]) - evaluated) <= 1e-2 * evaluated);
  CHECK(nlohmann::json::parse(bytes_of(in.file("fp32/config.json")))["dtype"] == "float32");
  const outcome back = run(in, {"--import", in.file("fp32"), "--mesh", "pp=2,ep=2", "--steps", "0", "--dtype", "bf16",
                                "--eval", in.file("text"), "--export", in.file("back")});
  REQUIRE(back.code == 0);
  CHECK(std::abs(double(back.summary["eval_loss"]) - evaluated) <= 1e-6 * evaluated);
  CHECK(bytes_of(in.file("bf16/model.safetensors")) == bytes_of(in.file("back/model.safetensors")));
  const double ratio = static_cast<double>(files::file_size(in.file("fp32/model.safetensors"))) /
                       static_cast<double>(files::file_size(in.file("bf16/model.safetensors")));
  CHECK(ratio > 1.7);
  CHECK(run(in, {"--dtype", "fp16"}).code != 0);
}

TEST_CASE("every line has the fields that scripts read") {
  const folder in;
  const outcome got = run(in, {"--model", in.file("model.json"), "--mesh", "pp=2,ep=2", "--steps", "2", "--tensorboard",
                               in.file("events"), "--report", in.file("page")});
  REQUIRE(got.steps.size() == 2);
  check_pages(in, got);
  check_trace(in, run(in, {"--model", in.file("model.json"), "--mesh", "pp=2,ep=2", "--steps", "2", "--trace",
                           in.file("trace"), "--trace-steps", "1-2", "--report", in.file("traced")}));
  // The same numbers for TensorBoard: the first event is the format's version, the last one the sample.
  const auto events = report_test::read_events(files::directory_iterator(in.file("events"))->path().string());
  REQUIRE(events.size() == 4);
  CHECK(events[3].texts.count("sample") == 1);
  for (const auto& step : got.steps) {
    const auto& event = events[std::size_t(step["step"])];
    CHECK(event.step == std::size_t(step["step"]));
    for (const char* field : {"loss", "aux_loss", "grad_norm", "tokens", "tokens_per_s", "bubble", "prefetch_hits"})
      CHECK(event.scalars.at(field) == static_cast<double>(static_cast<float>(double(step[field]))));
    const auto& peaks = step["peak_bytes"]["device"];
    CHECK(event.scalars.at("peak_bytes/device") == double(*std::max_element(peaks.begin(), peaks.end())));
    for (const char* field : {"step", "loss", "aux_loss", "grad_norm", "tokens", "tokens_per_s", "open_obligations",
                              "bubble", "bubble_predicted", "plan_misses", "prefetch_hits", "gathered_bytes_peak"}) {
      INFO(field);
      CHECK(step[field].is_number());
    }
    for (const char* field : {"live_bytes", "peak_bytes", "planned_bytes"}) {
      CHECK(step[field]["device"].size() == 4);
      CHECK(step[field]["host"].size() == 4);
    }
    CHECK(step["peak_bytes"] == step["planned_bytes"]);
    CHECK(step["open_obligations"] == 0);
    CHECK(step["tokens"] == 4 * 4 * 16);
    CHECK(step["replayed"].is_boolean());
    REQUIRE(step["expert_tokens"].size() == 2);
    for (const auto& layer : step["expert_tokens"]) {
      std::size_t sum = 0;
      for (const auto& count : layer) sum += std::size_t(count);
      CHECK(sum == 2 * 4 * 4 * 16);
    }
    for (const char* kind : {"device", "host", "heap"}) CHECK(step["allocations"][kind] == 0);
  }
  CHECK(got.summary["steps"] == 2);
  CHECK(got.summary["final_loss"] == got.steps[1]["loss"]);
  CHECK(got.summary["eval_loss"].is_null());
  CHECK(got.summary["config"]["mesh"] == "pp=2,dp=1,ep=2,tp=1");
  CHECK(got.summary["config"]["lr"] == 1e-3);
  // What is late on purpose has the same numbers, and can be repeated.
  const outcome late =
      run(in, {"--model", in.file("model.json"), "--mesh", "pp=2,ep=2", "--steps", "2", "--streams", "adversarial:7"});
  CHECK(late.summary["config"]["streams"] == "adversarial:7");
  REQUIRE(late.steps.size() == 2);
  for (std::size_t s = 0; s < 2; ++s) {
    for (const char* field : {"loss", "grad_norm"}) CHECK(late.steps[s][field] == got.steps[s][field]);
    CHECK(late.steps[s]["allocations"]["heap"] == 0);
  }
}

TEST_CASE("a budget of the planned bytes is enough, one byte less is refused with the table") {
  const folder in;
  const std::vector<std::string> flags{"--model", in.file("model.json"), "--mesh", "pp=2,ep=2", "--steps", "1"};
  const outcome free_run = run(in, flags);
  std::size_t planned = 0;
  for (const auto& bytes : free_run.steps[0]["planned_bytes"]["device"])
    planned = std::max(planned, std::size_t(bytes));
  auto limited = flags;
  limited.insert(limited.end(), {"--budget", "device=" + std::to_string(planned)});
  CHECK(run(in, limited).code == 0);
  limited.back() = "device=" + std::to_string(planned - 1);
  try {
    static_cast<void>(run(in, limited));
    FAIL("a plan one byte beyond its budget was accepted");
  } catch (const belay::plan_refused& refusal) {
    const std::string text = refusal.what();
    CHECK(text.find("expert windows") != std::string::npos);
    CHECK(refusal.shortage().needed_bytes == planned);
    // What is said to fit does, and needs what is said, to the byte.
    limited.back() = "device=" + std::to_string(advised(text, "--recompute full", "fits, with "));
    limited.insert(limited.end(), {"--recompute", "full"});
    CHECK(run(in, limited).code == 0);
    limited[limited.size() - 3] = "device=" + std::to_string(advised(text, "--recompute full", "fits, with ") - 1);
    CHECK_THROWS_AS(static_cast<void>(run(in, limited)), belay::plan_refused);
  }
}

TEST_CASE("an overflow replays the step under a larger plan, and ends the run where the budget forbids it") {
  const folder in;
  std::vector<std::string> flags{"--model", in.file("model.json"), "--mesh", "ep=4", "--steps",
                                 "4",       "--expert-capacity",   "1"};
  const outcome tight = run(in, flags);
  flags.back() = "8";
  const outcome roomy = run(in, flags);
  REQUIRE(tight.steps.size() == 4);
  bool replayed = false;
  for (std::size_t s = 0; s < 4; ++s) {
    replayed = replayed || bool(tight.steps[s]["replayed"]);
    CHECK(tight.steps[s]["loss"] == roomy.steps[s]["loss"]);
    CHECK(tight.steps[s]["grad_norm"] == roomy.steps[s]["grad_norm"]);
    CHECK(tight.steps[s]["peak_bytes"] == tight.steps[s]["planned_bytes"]);
    CHECK(tight.steps[s]["allocations"]["heap"] == 0);
  }
  CHECK(replayed);
  // The plan of the first step fits; what the replay needs does not.
  std::vector<std::string> limited{"--model", in.file("model.json"), "--mesh", "ep=4",    "--steps",
                                   "4",       "--expert-capacity",   "1",      "--budget"};
  std::size_t last = 0;
  for (const auto& bytes : tight.steps[3]["planned_bytes"]["device"]) last = std::max(last, std::size_t(bytes));
  limited.push_back("device=" + std::to_string(last - 1));
  CHECK_THROWS_AS(static_cast<void>(run(in, limited)), belay::plan_refused);
}

TEST_CASE("evaluation drops a window of one byte and takes short files whole") {
  const folder in;
  std::ofstream(in.file("short")) << "hello";
  std::ofstream(in.file("sixteen and one")) << "0123456789abcdef!";
  std::ofstream(in.file("sixteen")) << "0123456789abcdef";
  const auto evaluate = [&](const char* name, const char* mesh) {
    return double(run(in, {"--model", in.file("model.json"), "--mesh", mesh, "--steps", "0", "--eval", in.file(name)})
                      .summary["eval_loss"]);
  };
  CHECK(evaluate("sixteen", "pp=1") == evaluate("sixteen and one", "pp=1"));
  CHECK(std::abs(evaluate("short", "pp=2,ep=2") - evaluate("short", "pp=1")) < 1e-6);
}

TEST_CASE("flags that make no sense are refused with the flag and what would work") {
  const folder in;
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{{"--mesh", "pp=5"},
                                                        {"--mesh", "ep=3"},
                                                        {"--mesh", "dp=3"},
                                                        {"--mesh", "tp=2"},
                                                        {"--mesh", "xx=2"},
                                                        {"--mesh", "pp=0"},
                                                        {"--mesh", ""},
                                                        {"--budget", "device=lots"},
                                                        {"--budget", "disk=1GiB"},
                                                        {"--micro-batches", "0"},
                                                        {"--micro-batches", "-3"},
                                                        {"--sequence", "1"},
                                                        {"--expert-capacity", "0.5"},
                                                        {"--expert-capacity", "nan"},
                                                        {"--lr", "-1"},
                                                        {"--schedule", "zigzag"},
                                                        {"--zero", "4"},
                                                        {"--recompute", "some"},
                                                        {"--model", "/nowhere.json"},
                                                        {"--import", "/nowhere"},
                                                        {"--freeze", "embedding"},
                                                        {"--freeze", "experts,attention"},
                                                        {"--phases", "eval=1"},
                                                        {"--phases", "train=0"},
                                                        {"--phases", "train=2,play=1"},
                                                        {"--phases", "train=2,train=1"},
                                                        {"--export", ""},
                                                        {"--checkpoint", ""},
                                                        {"--checkpoint-every", "3"},
                                                        {"--keep", "3"},
                                                        {"--whole-below", "64"},
                                                        {"--gathers", "step"},
                                                        {"--offload", "optimizer:moon"},
                                                        {"--offload", "activations:file"},  // without --tier-dir
                                                        {"--offload", "activations,activations"},
                                                        {"--offload", "weights"},
                                                        {"--phase-tier", "host"},
                                                        {"--tier", "host"},
                                                        {"--expert-capacity", "1e300"},
                                                        {"--stepps", "3"}}) {
    INFO(flag << " " << value);
    std::vector<std::string> all{"train_moe", flag, value};
    std::vector<char*> pointers;
    for (std::string& text : all) pointers.push_back(text.data());
    int code = 0;
    CHECK(!train_moe::parse(static_cast<int>(pointers.size()), pointers.data(), code));
    CHECK(code != 0);
  }
}

TEST_CASE("with --phase-tier gradients and optimizer state leave the device for eval and rollout, and come back") {
  const folder in;
  const auto train = [&](const char* zero, std::vector<std::string> more) {
    std::vector<std::string> flags{"--model",  in.file("model.json"),
                                   "--steps",  "4",
                                   "--mesh",   "dp=2",
                                   "--zero",   zero,
                                   "--phases", "train=2,eval=1,rollout=1",
                                   "--eval",   in.file("text")};
    flags.insert(flags.end(), more.begin(), more.end());
    return run(in, flags);
  };
  for (const char* zero : {"0", "1", "2", "3"}) {
    CAPTURE(std::string(zero));
    const outcome resident = train(zero, {});
    for (const std::string tier : {"host", "pinned", "file"}) {
      const bool in_file = tier == "file";
      std::vector<std::string> more{"--phase-tier", tier, "--offload", "activations"};
      if (in_file) more.insert(more.end(), {"--tier-dir", "/dev/shm"});
      const outcome got = train(zero, more);
      CHECK(got.summary["config"]["phase_tier"] == tier);
      CHECK(got.summary["eval_loss"] == resident.summary["eval_loss"]);
      REQUIRE(got.phases.size() == resident.phases.size());
      for (std::size_t i = 0; i < got.phases.size(); ++i) {
        const nlohmann::json& line = got.phases[i];
        if (!line.contains("transition")) continue;
        CAPTURE(line.dump());
        const auto changed = [&](const std::string& of) {
          return static_cast<long long>(line["live_bytes_after"][of]) -
                 static_cast<long long>(line["live_bytes_before"][of]);
        };
        const char* what = "gradients and optimizer state";
        if (line["transition"]["from"] == "train") {
          const long long bytes = line["drained"][what];
          CHECK(bytes > 0);
          CHECK(changed("device") == -bytes);
          CHECK(changed(tier) == (in_file ? 0 : bytes));  // a file has its bytes for as long as the run
        } else if (line["transition"]["to"] == "train") {
          const long long bytes = line["returned"][what];
          CHECK(bytes > 0);
          CHECK(changed("device") == bytes);
          CHECK(changed(tier) == (in_file ? 0 : -bytes));
        } else {
          CHECK(line["live_bytes_before"] == line["live_bytes_after"]);
        }
        for (const long long grown : line["grown_bytes"]) CHECK(grown == 0);
      }
      CHECK(got.steps.back()["peak_bytes"] == got.steps.back()["planned_bytes"]);
      CHECK((got.summary["tier_file"] == "buffered: the directory is in memory (tmpfs)") == in_file);
    }
    for (const nlohmann::json& line : resident.phases)
      if (line.contains("transition")) CHECK(line["returned"].empty());
  }
}

TEST_CASE("phases stand between training steps, and training does not notice them") {
  const folder in;
  const auto train = [&](std::vector<std::string> more) {
    std::vector<std::string> flags{"--model", in.file("model.json"), "--steps", "5", "--eval", in.file("text")};
    flags.insert(flags.end(), more.begin(), more.end());
    return run(in, flags);
  };
  const outcome alone = train({"--mesh", "pp=1"});
  std::vector<std::string> texts;
  for (const char* mesh : {"pp=1", "pp=2", "dp=2", "ep=2", "pp=2,dp=2"}) {
    for (const char* zero : {"1", "3"}) {
      INFO(mesh << ", zero " << zero);
      const outcome got = train({"--mesh", mesh, "--zero", zero, "--phases", "train=2,eval=1,rollout=2"});
      REQUIRE(got.steps.size() == 5);
      for (std::size_t s = 0; s < 5; ++s) {
        CHECK(std::abs(double(got.steps[s]["loss"]) - double(alone.steps[s]["loss"])) < 1e-6);
        CHECK(got.steps[s]["peak_bytes"] == got.steps[s]["planned_bytes"]);
        CHECK(got.steps[s]["allocations"]["heap"] == 0);
        CHECK(got.steps[s]["plan_misses"] == 0);
        CHECK(got.steps[s]["phase"] == "train");
      }
      CHECK(std::abs(double(got.summary["eval_loss"]) - double(alone.summary["eval_loss"])) < 1e-6);
      CHECK(got.summary["config"]["phases"] == "train=2,eval=1,rollout=2");
      // Twice: into evaluation, its pass, into the rollouts, both of them, and back.
      const std::vector<std::string> order{"eval", "pass", "rollout", "drawn", "drawn", "train"};
      REQUIRE(got.phases.size() == 2 * order.size());
      for (std::size_t i = 0; i < got.phases.size(); ++i) {
        const nlohmann::json& line = got.phases[i];
        CAPTURE(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
        CHECK(line["after_step"] == (i < order.size() ? 2 : 4));
        const std::string& what = order[i % order.size()];
        if (what == "pass") {
          CHECK(line["phase"] == "eval");
          CHECK(line["eval"] == 1 + i / order.size());
          CHECK(double(line["loss"]) > 1);
        } else if (what == "drawn") {
          CHECK(line["phase"] == "rollout");
          for (const std::size_t length : line["lengths"]) CHECK((length >= 1 && length <= 16));
          texts.push_back(line["text"]);
        } else {
          CHECK(line["transition"]["to"] == what);
          CHECK(line["live_bytes_before"] == line["live_bytes_after"]);
          for (const long long grown : line["grown_bytes"]) CHECK(grown == 0);
          CHECK(line["resident_bytes_after"] > 0);
          CHECK(line["drained"].contains("gathered parameters"));
          continue;
        }
        CHECK(line["plan_misses"] == 0);
        if (std::string(zero) == "3" && std::string(mesh) != "pp=1" && std::string(mesh) != "pp=2") {
          CHECK(line["prefetch_hits"] > 0);
          CHECK(line["gathered_bytes_peak"] > 0);
        }
      }
    }
  }
  // The first pipeline draws the same texts on every mesh.
  REQUIRE(texts.size() == 10 * 4);
  for (std::size_t i = 0; i < texts.size(); ++i) CHECK(texts[i] == texts[i % 4]);
  CHECK(texts[0] != texts[1]);
}

TEST_CASE("an evaluation without a file reads what training does not") {
  const folder in;
  const std::vector<std::string> flags{"--model", in.file("model.json"), "--mesh", "pp=1", "--steps", "2", "--phases"};
  auto held_out = flags, train_alone = flags;
  held_out.insert(held_out.end(), {"train=1,eval=1"});
  train_alone.insert(train_alone.end(), {"train=1"});
  const outcome with = run(in, held_out), without = run(in, train_alone);
  CHECK(with.phases.size() == 6);
  CHECK(without.phases.empty());
  CHECK(with.summary["eval_loss"].is_null());
  CHECK(with.steps[0]["loss"] != without.steps[0]["loss"]);  // of a shorter text
}

TEST_CASE("evaluation ends and agrees where the capacity holds fewer windows than an expert group has ranks") {
  const folder in;
  const auto evaluate = [&](const char* mesh, const char* capacity) {
    const outcome got = run(in, {"--model", in.file("model.json"), "--mesh", mesh, "--expert-capacity", capacity,
                                 "--steps", "0", "--eval", in.file("text")});
    return double(got.summary["eval_loss"]);
  };
  const double one = evaluate("pp=1", "4");
  for (const char* mesh : {"ep=4", "ep=2", "pp=2,ep=4", "dp=2,ep=4"}) {
    for (const char* capacity : {"1", "1.5", "2", "4"}) {
      INFO(mesh << ", capacity " << capacity);
      CHECK(std::abs(evaluate(mesh, capacity) - one) <= 1e-6 * one);
    }
  }
}
