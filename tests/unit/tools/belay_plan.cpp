// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The built belay-plan beside the trainer whose runs it plans, and as whoever uses it wrongly sees it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tools/belay_plan/config.hpp"
#include "tools/belay_plan/plan.hpp"
#include "tools/belay_plan/search.hpp"
#include "tools/belay_plan/text.hpp"
#include "unit/tools/program_output.hpp"

using namespace program_output;

namespace {

using nlohmann::json;

const std::string program = std::string("'") + BELAY_PLAN + "' ";

json planned(const std::string& arguments, int code = 0) {
  CAPTURE(arguments);
  const outcome told = run("(" + program + arguments + " --json 2>/dev/null)");
  CAPTURE(told.out);
  REQUIRE(told.code == code);
  return json::parse(told.out);
}

// Bytes of a tier by rank, of all purposes or of one.
std::vector<std::size_t> by_rank(const json& plan, const std::string& tier, const std::string& purpose = "") {
  std::vector<std::size_t> out(plan["run"]["ranks"].get<std::size_t>());
  for (const json& one : plan["classes"]) {
    const json& from = purpose.empty() ? one["total"] : one["bytes"].value(tier, json::object());
    const std::size_t bytes = from.value(purpose.empty() ? tier : purpose, std::size_t{0});
    for (const json& range : one["ranks"])
      for (auto rank = range[0].get<std::size_t>(); rank <= range[1].get<std::size_t>(); ++rank) out[rank] = bytes;
  }
  return out;
}

// The same run in the words of the trainer, whose batch is in micro-batches.
struct trained {
  const char* model;
  const char* flags;
  const char* micro_batches;
  const char* global_batch;
};
constexpr trained runs[] = {
    {"tiny", "--mesh pp=2,ep=2 --micro-batch-size 4 --sequence 16 --dtype fp32 --zero 1", "4", "16"},
    {"tiny",
     "--mesh dp=2 --micro-batch-size 1 --sequence 8 --dtype bf16 --zero 3 --recompute selective "
     "--offload optimizer:pinned,parameters:host",
     "2", "2"},
    {"tiny",
     "--mesh pp=2,dp=2 --micro-batch-size 2 --sequence 8 --dtype bf16 --zero 2 --recompute full --schedule gpipe "
     "--offload activations:host",
     "8", "16"},
    {"tiny",
     "--mesh dp=4 --shard-group 2 --micro-batch-size 1 --sequence 8 --dtype bf16 --zero 3 --gathers step "
     "--offload gradients:host",
     "4", "4"},
    {"tiny", "--mesh ep=2,dp=2 --micro-batch-size 2 --sequence 8 --dtype fp32 --zero 0 --expert-capacity 3", "2", "4"},
    {"small", "--mesh pp=2 --micro-batch-size 1 --sequence 8 --dtype fp32 --zero 1", "2", "2"},
};

// The table of train_moe --print-plan beside the rows of belay-plan.
std::size_t compare_rows(const json& plan, const std::string& printed) {
  std::istringstream lines(printed);
  std::size_t rows = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string tier, word, purpose;
    std::vector<std::size_t> bytes;
    in >> tier;
    if (tier != "device" && tier != "pinned" && tier != "host") continue;
    while (in >> word)
      if (word.find_first_not_of("0123456789") == std::string::npos)
        bytes.push_back(std::stoull(word));
      else
        purpose += (purpose.empty() ? "" : " ") + word;
    if (bytes.empty()) continue;
    CAPTURE(line);
    CHECK(by_rank(plan, tier, purpose == "total" ? "" : purpose) == bytes);
    ++rows;
  }
  return rows;
}

}  // namespace

TEST_CASE("bytes are those that train_moe plans and measures, on every rank, in every tier, for every purpose") {
  const scratch folder;
  std::ofstream(folder / "text") << std::string(4096, 'a') << "some more of it";
  for (const trained& each : runs) {
    INFO(std::string(each.model) << " " << std::string(each.flags));
    const json plan = planned(std::string(each.model) + " " + each.flags + " --global-batch " + each.global_batch);
    CHECK(plan["rehearsed"] == true);
    const outcome told = run(std::string("'") + BELAY_TRAIN_MOE + "' --model " + each.model + " " + each.flags +
                             " --micro-batches " + each.micro_batches + " --steps 1 --streams immediate --print-plan " +
                             "--data " + (folder / "text") + " --json " + (folder / "lines"));
    CAPTURE(told.out);
    REQUIRE(told.code == 0);
    CHECK(compare_rows(plan, told.out) >= 10);
    std::ifstream lines(folder / "lines");
    std::string line;
    REQUIRE(std::getline(lines, line));
    const json step = json::parse(line);
    for (const auto& [tier, bytes] : step["peak_bytes"].items()) {
      INFO(std::string(tier));
      CHECK(by_rank(plan, tier) == bytes.get<std::vector<std::size_t>>());
      CHECK(by_rank(plan, tier) == step["planned_bytes"][tier].get<std::vector<std::size_t>>());
    }
  }
}

// Of four stages, so that what training keeps is more than what the evaluation needs that train_moe plans too.
TEST_CASE("where a model is rehearsed, the estimate of the others is within a tenth of the rehearsal") {
  using namespace belay_plan;
  const architecture tiny = config_reader::read(config_of("tiny"));
  setting same;
  same.mesh = {.pipeline = 4};
  same.micro_batch_size = 4;
  for (same.dtype = belay::dtype::f32; const auto recompute : all_recomputes)
    for (const char* const schedule : {"1f1b", "gpipe"}) {
      same.recompute = recompute;
      same.schedule.name = schedule;
      same.dtype = same.dtype == belay::dtype::f32 ? belay::dtype::bf16 : belay::dtype::f32;
      const json plan = planned("tiny " + flags_of(same));
      const auto classes = estimated_classes(tiny, same);
      for (const std::string row : {"activations", "expert windows"})
        for (std::size_t stage = 0; stage < 4; ++stage) {
          INFO(flags_of(same) << ", " << row << " of stage " << stage);
          const auto rehearsed = static_cast<double>(by_rank(plan, "device", row)[stage]);
          const auto estimated = static_cast<double>(classes[stage].bytes(belay::tier::device, row));
          CHECK(estimated / rehearsed == doctest::Approx(1).epsilon(row == "activations" ? 0.05 : 1e-9));
        }
    }
}

TEST_CASE("an answer of --fit is a plan that fits, and where nothing fits the exit code is 3") {
  for (const std::string model : {"tiny", "llama-3-70b"}) {
    const bool tiny = model == "tiny";
    const std::string batch = tiny ? " --global-batch 16 --sequence 64" : " --global-batch 2048";
    const std::string budget = tiny ? "device=12MiB" : "device=80GiB";
    const json all = planned(model + batch + " --top 3 --fit " + budget + " --ranks " + (tiny ? "4" : "1024"));
    CHECK(all["fits"] == true);
    REQUIRE(!all["answers"].empty());
    double before = 0;
    for (const json& each : all["answers"]) {
      CHECK(each["rehearsed"] == tiny);
      CHECK(each["step"]["seconds"] >= before);
      before = each["step"]["seconds"];
      const json again = planned(model + " " + each["flags"].get<std::string>() + " --budget " + budget);
      CHECK(again["fits"] == true);
      CHECK(again["classes"] == each["classes"]);
      CHECK(again["step"] == each["step"]);
    }
  }
  CHECK(planned("tiny --sequence 64 --ranks 2 --fit device=100KiB", 3)["fits"] == false);
  const outcome none = run(program + "llama-3-70b --ranks 8 --fit device=1GiB");
  CHECK(none.code == 3);
  CHECK(has(none, "belay-plan: nothing fits: of "));
  CHECK(has(none, "the budget is 1073741824 (1.0 GiB)"));
  // A plan over its budget says where, and one that has exactly its bytes fits.
  const json plan = planned("gpt2");
  const auto needed = plan["classes"][0]["total"]["device"].get<std::size_t>();
  CHECK(planned("gpt2 --budget device=" + std::to_string(needed))["fits"] == true);
  CHECK(planned("gpt2 --budget device=" + std::to_string(needed - 1), 3)["fits"] == false);
  CHECK(has(run(program + "gpt2 --budget device=1MiB"), "tier device: rank 0 needs " + std::to_string(needed)));
}

// Of each setting in the order of predicted time, whatever a formula says of its bytes, is asked whether it fits.
TEST_CASE("a search has the answers of one that rehearses every setting") {
  using namespace belay_plan;
  for (const std::string model : {"tiny", "small"}) {
    const bool tiny = model == "tiny";
    setting base;
    base.global_batch = 4;
    base.sequence = 8;
    const std::string budget = tiny ? "device=16MiB" : "device=330MiB";
    plan_search search(config_reader::read(config_of(model)), base, tiny ? 4 : 2, {}, {});
    std::vector<setting> found;
    for (const candidate& each : search.run()) {
      if (found.size() == 2) break;
      if (std::any_of(found.begin(), found.end(), [&](const setting& one) { return same_shape(one, each.run); }))
        continue;
      if (run(program + model + " " + flags_of(each.run) + " --budget " + budget + " --json 2>&1").code == 0)
        found.push_back(each.run);
    }
    const json answers = planned(model + " --global-batch 4 --sequence 8 --top 2 --fit " + budget + " --ranks " +
                                 (tiny ? "4" : "2"))["answers"];
    REQUIRE(answers.size() == found.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(answers[i]["flags"] == flags_of(found[i]));
  }
}

// What a search of a thousand ranks takes is counted, not timed.
TEST_CASE("one rank of each stage is rehearsed, and a search rehearses little") {
  CHECK(planned("tiny --mesh pp=2,dp=2,ep=2 --sequence 8 --zero 3 --micro-batch-size 2")["rehearsed_ranks"] == 2);
  CHECK(planned("small --mesh dp=3 --sequence 8 --zero 1 --offload optimizer")["rehearsed_ranks"] == 1);
  const json fast = planned("mixtral-8x7b --ranks 1024 --fit device=80GiB --top 2");
  CHECK(fast["rehearsals"] < 40);
  CHECK(fast["cut_short"] == false);
  for (const json& each : fast["answers"]) {
    CHECK(each["rehearsed"] == true);
    CHECK(each["rehearsed_ranks"] == each["run"]["mesh"]["pp"]);
  }
  const json many = planned("mixtral-8x7b --ranks 64 --global-batch 128 --fit device=80GiB --top 3");
  CHECK(many["answers"].size() == 3);
  CHECK(many["rehearsals"] < 40);
  const json none = planned("mixtral-8x7b --ranks 64 --global-batch 128 --fit device=1GiB", 3);
  CHECK(none["rehearsals"] == 0);
}

TEST_CASE("constants are printed, and change the prediction alone") {
  const json plan = planned("llama-3-8b --ranks 8 --zero 1");
  const json other = planned("llama-3-8b --ranks 8 --zero 1 --alpha 1ms --beta 1GB/s --flops 1PFLOPS");
  CHECK(plan["classes"] == other["classes"]);
  CHECK(other["step"]["alpha"] == 1e-3);
  CHECK(other["step"]["beta"] == 1e-9);
  CHECK(other["step"]["flops"] == 1e15);
  CHECK(other["step"]["states_seconds"] > plan["step"]["states_seconds"]);
  CHECK(other["step"]["pipeline_seconds"] < plan["step"]["pipeline_seconds"]);
  CHECK(has(run(program + "llama-3-8b --flops 1PFLOPS"), "flops 1000.0 TFLOP/s a rank"));
  CHECK(plan["bytes_a_parameter"] == json{{"store", 18}, {"paper", 16}});
  const json& states = plan["states_by_stage"][0];
  CHECK(states["store"]["all"] == 6 * 8'030'261'248 + 12 * (8'030'261'248 / 8));
  CHECK(states["paper"]["all"] == 4 * 8'030'261'248 + 12 * (8'030'261'248 / 8));
}

TEST_CASE("a table, and what is an estimate is marked so") {
  const outcome told = run(program + "deepseek-v2-lite --mesh pp=2,ep=4 --recompute full");
  CHECK(told.code == 0);
  CHECK(has(told, "model: deepseek-v2-lite, 15,706,484,224 parameters"));
  CHECK(
      has(told, "by formula, what is marked estimate by a simpler one: train_moe, which is rehearsed, trains Mixtral"));
  CHECK(has(told, "  stage 0 "));
  CHECK(has(told, "  rank 0-3 "));
  CHECK(has(told, "estimate\n"));
  CHECK(has(told, "formula\n"));
  CHECK(has(told, "in the ZeRO paper's types: "));
  CHECK(has(run(program + "deepseek-v3 --ranks 2048 --mesh pp=16,ep=64"), "num_nextn_predict_layers 1"));
  CHECK(has(run(program + "deepseek-v3 --ranks 2048 --mesh pp=16,ep=64"), "and 8 more classes of ranks"));
  std::istringstream lines(run(program + "deepseek-v3 --ranks 2048 --mesh pp=16,ep=64").out);
  for (std::string line; std::getline(lines, line) && !line.starts_with("and 8 more");)
    if (line.starts_with("device") || line.starts_with("tier")) CHECK(line.size() <= 160);
  // Layers need not divide.
  CHECK(has(run(program + "tiny --mesh pp=3"), "bytes: of the rehearsal that train_moe begins with"));
  CHECK(has(run("TMPDIR=/nope " + program + "tiny --sequence 8 --offload optimizer:file"),
            "cannot be used (No such file or directory): set TMPDIR to a folder"));
}

TEST_CASE("a flag that is given twice takes the last value") {
  const json last = planned("tiny --mesh pp=2 --zero 3 --ranks 4 --mesh=dp=2 --zero 1 --ranks 2");
  CHECK(last["run"] == planned("tiny --mesh dp=2 --zero 1 --ranks 2")["run"]);
}

TEST_CASE("what makes no sense is refused with the flag and what would work") {
  struct wrong {
    const char* arguments;
    const char* words;
  };
  for (const wrong& each : {
           wrong{"", "model is required"},
           wrong{"lama", "lama: there is no such file, and no preset of that name; the presets are tiny, small, gpt2"},
           wrong{"/dev/null", "/dev/null"},
           wrong{"tiny --mesh pp=0", "--mesh: pp needs a whole number of ranks, at least 1, got '0'"},
           wrong{"tiny --mesh pp=8", "--mesh pp=8: the model has 4 layers"},
           wrong{"tiny --mesh ep=3", "--mesh ep=3 does not divide the model's experts (8); it can be 1, 2, 4, 8"},
           wrong{"gpt2 --mesh ep=2", "--mesh ep=2: the model has no experts to divide"},
           wrong{"gpt2 --mesh tp=2", "--mesh tp=2: belay-plan plans no tensor-parallel layers yet"},
           wrong{"gpt2 --mesh dp=3 --global-batch 32", "--mesh dp=3 does not divide the micro-batches of a step"},
           wrong{"gpt2 --micro-batch-size 3 --global-batch 32",
                 "--micro-batch-size 3 does not divide --global-batch (32); it can be 1, 2, 4, 8, 16, 32"},
           wrong{"gpt2 --sequence 2048", "--sequence 2048: the model has positions for 1024 tokens"},
           wrong{"gpt2 --sequence many", "--sequence: expected a whole number of tokens"},
           wrong{"gpt2 --ranks 8 --mesh dp=3", "--ranks 8, but --mesh pp=1,dp=3,ep=1 has 3"},
           wrong{"gpt2 --ranks 8 --mesh pp=3", "--ranks 8 cannot be divided by the 3 of pp x ep in --mesh"},
           wrong{"gpt2 --zero 4", "--zero"},
           wrong{"gpt2 --mesh pp=8 --schedule zb-v",
                 "--schedule zb-v cuts the model into 16 stages on pp=8, and it has 12 layers"},
           wrong{"gpt2 --schedule zbv",
                 "--schedule zbv: is no schedule; it is one of gpipe|1f1b|interleaved:V[:G]|bfs:V"},
           wrong{"gpt2 --schedule /no/such.csv", "/no/such.csv"},
           wrong{"gpt2 --fit device=80 --ranks 8 --schedule auto", "--schedule is what --fit searches"},
           wrong{"gpt2 --gathers step", "--gathers step says how long --zero 3 keeps what it gathers: take --zero 3"},
           wrong{"gpt2 --ranks 8 --shard-group 3",
                 "--shard-group 3 does not divide the mesh's dp (8); it can be 1, 2, 4"},
           wrong{"gpt2 --ranks 8 --shard-group 2 --zero 0", "--zero 0 divides nothing: take --zero 1, 2 or 3"},
           wrong{"gpt2 --fit device=80GiB --ranks 8 --shard-group 2", "try --shard-group on an answer of it"},
           wrong{"gpt2 --zero 3 --whole-below 4096", "--whole-below 4096 is planned where the run can be rehearsed"},
           wrong{"gpt2 --fit device=80GiB --ranks 8 --whole-below 1", "try --whole-below on an answer of it"},
           wrong{"tiny --whole-below 4096", "--whole-below"},
           wrong{"gpt2 --offload parameters", "--offload parameters: shards of parameters are what --zero 3 has"},
           wrong{"gpt2 --offload attention", "--offload attention: this trainer offloads optimizer, parameters"},
           wrong{"gpt2 --tier pinned", "--tier pinned is the tier of an --offload that names none"},
           wrong{"gpt2 --budget ram=1GiB", "--budget: unknown tier 'ram'"},
           wrong{"gpt2 --fit device=80 --ranks 8 --zero 1", "--zero is what --fit searches"},
           wrong{"gpt2 --fit device=80GiB", "--fit searches settings of so many ranks as --ranks says"},
           wrong{"gpt2 --fit 80GiB --ranks 8", "--fit: expected name=value"},
           wrong{"gpt2 --fit device=80GiB --ranks 13 --global-batch 7",
                 "--global-batch 7 cannot be divided by any mesh of 13 ranks"},
           wrong{"gpt2 --top 3", "--top says how many answers --fit shows"},
           wrong{"gpt2 --beta 50", "--beta is a number larger than 0 with its unit, as in 50GB/s, not '50'"},
           wrong{"gpt2 --alpha 0us", "--alpha is a number larger than 0"},
           wrong{"gpt2 --flops 1e-300",
                 "--flops 1e-300 is no constant that a time can be predicted with: it can be 1FLOPS"},
           wrong{"gpt2 --flops 1e300", "--flops 1e300 is no constant"},
           wrong{"gpt2 --beta 1e-300GB/s", "--beta 1e-300GB/s is no constant"},
           wrong{"gpt2 --alpha 1e300s", "--alpha 1e300s is no constant"},
           wrong{"gpt2 --expert-capacity 0.5", "--expert-capacity is a factor"},
           wrong{"gpt2 --jsno", "--jsno"},
       }) {
    const outcome told = run(program + each.arguments);
    INFO(std::string(each.arguments));
    CAPTURE(told.out);
    CHECK(told.code == 2);
    CHECK(has(told, each.words));
  }
  CHECK(run(program + "--help").code == 0);
  CHECK(run(program + "tiny --json >/dev/full").code == 1);
  const scratch folder;
  std::ofstream(folder / "config.json") << "{\"model_type\": \"llama\", ";
  CHECK(has(run(program + (folder / "config.json")), "config.json: is cut off: it ends in the middle (byte 24)"));
}
