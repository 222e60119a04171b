// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What belay-plan knows of models, states, schedules and searches, beside what is published and known.
#include <doctest/doctest.h>

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "tools/belay_plan/config.hpp"
#include "tools/belay_plan/plan.hpp"
#include "tools/belay_plan/search.hpp"
#include "tools/belay_plan/text.hpp"

using namespace belay_plan;

namespace {

architecture model(const std::string& name) { return config_reader::read(config_of(name)); }

// Rows of a published file: so many tensors of so many elements.
struct tensors {
  count number, rows, columns;
};
count all(const std::vector<tensors>& list) {
  return std::accumulate(list.begin(), list.end(), count{0},
                         [](count sum, const tensors& each) { return sum + each.number * each.rows * each.columns; });
}

void refused(const std::string& text, const char* why) {
  CAPTURE(text);
  try {
    static_cast<void>(config_reader::read({text, "config.json"}));
    FAIL("accepted");
  } catch (const belay::error& problem) {
    const std::string what = problem.what();
    CAPTURE(what);
    CHECK(what.find("config.json") != std::string::npos);
    CHECK(what.find(why) != std::string::npos);
  }
}

setting of_mesh(int pp, int dp, int ep, count micro_batches) {
  setting run;
  run.mesh = {.pipeline = pp, .data = dp, .expert = ep};
  run.micro_batch_size = run.expert_ranks();
  run.global_batch = run.micro_batch_size * run.replicas() * micro_batches;
  return run;
}

}  // namespace

TEST_CASE("presets have the parameters of the published models") {
  CHECK(parameters_of(model("gpt2")) == 124'439'808);
  CHECK(parameters_of(model("llama-3-8b")) == 8'030'261'248);
  CHECK(parameters_of(model("llama-3-70b")) == 70'553'706'496);
  CHECK(parameters_of(model("mixtral-8x7b")) == 46'702'792'704);
  // The tensors of DeepSeek's files, without V3's layer 61, which predicts a second token.
  const std::vector<tensors> lite{{2, 102400, 2048}, {1, 1, 2048},   {27 * 2, 1, 2048},         {27, 3072, 2048},
                                  {27, 576, 2048},   {27, 1, 512},   {27, 4096, 512},           {27, 2048, 2048},
                                  {3, 10944, 2048},  {26, 64, 2048}, {26 * 64 * 3, 1408, 2048}, {26 * 3, 2816, 2048}};
  CHECK(parameters_of(model("deepseek-v2-lite")) == all(lite));
  CHECK(all(lite) == 15'706'484'224);
  const std::vector<tensors> v3{
      {2, 129280, 7168},    {1, 1, 7168},    {61 * 2, 1, 7168}, {61, 1536, 7168},           {61, 1, 1536},
      {61, 24576, 1536},    {61, 576, 7168}, {61, 1, 512},      {61, 32768, 512},           {61, 7168, 16384},
      {3 * 3, 18432, 7168}, {58, 256, 7168}, {58, 1, 256},      {58 * 256 * 3, 2048, 7168}, {58 * 3, 2048, 7168}};
  CHECK(parameters_of(model("deepseek-v3")) == all(v3));
  CHECK(all(v3) == 671'026'419'200);
  CHECK(model("deepseek-v3").left_out.find("num_nextn_predict_layers 1") == 0);
  CHECK(model("deepseek-v2-lite").left_out.empty());
  // Of experts a token visits some: 12.9 and 37 billion are published.
  const auto active = [](const char* name) { return static_cast<double>(active_parameters_of(model(name))) / 1e9; };
  CHECK(active("mixtral-8x7b") == doctest::Approx(12.9).epsilon(0.005));
  CHECK(active("deepseek-v3") == doctest::Approx(37).epsilon(0.02));
  CHECK(active_parameters_of(model("llama-3-8b")) == parameters_of(model("llama-3-8b")));
}

TEST_CASE("a config.json that lacks a field, or has a size that cannot be, is refused with the field") {
  const std::string start = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, )";
  refused("", "is cut off");
  refused("[1]", "is no JSON object");
  refused(R"({"hidden_size": 64})", "model_type is missing; it is one of gpt2, llama");
  refused(R"({"model_type": "bert"})", "model_type is \"bert\", and belay-plan knows the sizes of gpt2");
  refused(R"({"model_type": ["llama"]})", "model_type is [\"llama\"]");
  refused(start + R"("vocab_size": 10})", "num_hidden_layers is missing");
  refused(start + R"("vocab_size": -1, "num_hidden_layers": 1})", "vocab_size is -1, a whole number");
  refused(start + R"("vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 7})",
          "hidden_size is 64, no multiple of num_attention_heads 7");
  refused(start + R"("vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 3})",
          "num_attention_heads is 4, no multiple of num_key_value_heads 3");
  refused(start + R"("vocab_size": 9, "num_hidden_layers": 99999, "num_attention_heads": 4})",
          "num_hidden_layers is 99999, at most 65536 are planned");
  refused(start + R"("vocab_size": 2147483648, "num_hidden_layers": 1, "num_attention_heads": 4})",
          "are at most 16777216");
  refused(start + R"("vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 4, "tie_word_embeddings": 1})",
          "tie_word_embeddings is 1, true or false is needed");
  refused(R"({"model_type": "llama", "vocab_size": 9, "num_hidden_layers": 65536, "num_attention_heads": 16777216,
      "hidden_size": 16777216, "intermediate_size": 16777216})",
          "more than 281474976710656 parameters");
  std::string mixtral(find_preset("mixtral-8x7b")->config);
  mixtral.replace(mixtral.find("_per_tok\": 2"), 12, "_per_tok\": 9");
  refused(mixtral, "num_experts_per_tok is 9, there are num_local_experts 8");
  CHECK_THROWS_WITH_AS(
      static_cast<void>(config_of("lama")),
      doctest::Contains("lama: there is no such file, and no preset of that name; the presets are tiny"),
      belay::input_error);
}

TEST_CASE("stages have all layers in order, as even as can be, and the first ones those that are left over") {
  for (count layers = 1; layers <= 61; ++layers)
    for (count stages = 1; stages <= layers; ++stages) {
      count next = 0, before = layers;
      for (count stage = 0; stage < stages; ++stage) {
        const auto [first, size] = layers_of_stage(layers, stages, stage);
        CHECK(first == next);
        CHECK((size == layers / stages || size == layers / stages + 1));
        CHECK(size <= before);
        CHECK((size > layers / stages) == (stage < layers % stages));
        before = size;
        next += size;
      }
      CHECK(next == layers);
    }
}

TEST_CASE("states are the formula of each stage, in the store's types and in the paper's") {
  CHECK(store_types(belay::dtype::bf16).all() == 18);
  CHECK(store_types(belay::dtype::f32).all() == 16);
  CHECK(paper_types.all() == 16);
  // Figure 1 of the paper: 7.5 billion parameters on 64 ranks.
  const std::vector<parameter_block> model_of_paper{{7'500'000'000, 0, 1}};
  const double published[] = {120, 31.4, 16.6, 1.9};
  setting run = of_mesh(1, 64, 1, 1);
  for (run.zero = 0; run.zero <= 3; ++run.zero)
    CHECK(static_cast<double>(states_of(model_of_paper, run, paper_types).all()) / 1e9 ==
          doctest::Approx(published[run.zero]).epsilon(run.zero == 3 ? 0.02 : 0.003));
  // All ranks together hold what is divided once, dense parameters over dp x ep and experts over dp.
  const architecture mixtral = model("mixtral-8x7b");
  run = of_mesh(4, 4, 2, 8);
  run.zero = 3;
  count together = 0;
  for (count stage = 0; stage < 4; ++stage)
    together += 8 * states_of(blocks_of(mixtral, run, stage), run, store_types(run.dtype)).all();
  CHECK(static_cast<double>(together) == doctest::Approx(18.0 * 46'702'792'704.0).epsilon(1e-6));
  // In groups of two along dp each of the two groups holds all of it.
  run.mesh.shard_group = 2;
  count in_groups = 0;
  for (count stage = 0; stage < 4; ++stage)
    in_groups += 8 * states_of(blocks_of(mixtral, run, stage), run, store_types(run.dtype)).all();
  CHECK(static_cast<double>(in_groups) == doctest::Approx(2.0 * static_cast<double>(together)).epsilon(1e-6));
  run.mesh.shard_group = 0;
  // Whole ones are on every rank: the layers once a stage, its experts once over ep.
  run.zero = 0;
  together = 0;
  for (count stage = 0; stage < 4; ++stage)
    together += 2 * states_of(blocks_of(mixtral, run, stage), run, store_types(run.dtype)).all();
  const count experts = 32 * 8 * expert_parameters(mixtral);
  CHECK(together == 18 * (2 * (46'702'792'704 - experts) + experts));
  // A table that the head uses too is on the first and on the last stage.
  const architecture gpt2 = model("gpt2");
  count of_stages = 0;
  for (count stage = 0; stage < 2; ++stage)
    for (const parameter_block& each : blocks_of(gpt2, of_mesh(2, 1, 1, 2), stage)) of_stages += each.all();
  CHECK(of_stages == 124'439'808 + 50257 * 768);
  CHECK(blocks_of(gpt2, of_mesh(1, 1, 1, 1), 0).back().all() == 2 * 768);
}

TEST_CASE("the bubble of equal stages is (p - 1) / (m + p - 1), and stages that differ wait longer") {
  const architecture llama = model("llama-3-8b");
  for (const char* const schedule : {"1f1b", "gpipe"})
    for (const int stages : {1, 2, 4, 8})
      for (const count micro_batches : {8U, 13U, 64U}) {
        setting run = of_mesh(stages, 1, 1, micro_batches);
        run.schedule.name = schedule;
        const bubble_share found = time_model(llama, run, {}).bubble();
        CHECK(found.equal_stages ==
              doctest::Approx((stages - 1.0) / (static_cast<double>(micro_batches) + stages - 1)));
        CHECK(found.by_time >= found.equal_stages - 1e-9);  // the last stage has the head too
      }
  // Too large to be played.
  CHECK(time_model(llama, of_mesh(32, 1, 1, 4096), {}).bubble().equal_stages == doctest::Approx(31.0 / 4127));
}

TEST_CASE("what keeps less needs less, and what waits longer takes longer") {
  const architecture llama = model("llama-3-8b");
  const auto device = [&](const setting& run) { return fullest(llama, run)[0]; };
  const auto seconds = [&](const setting& run) { return time_model(llama, run, {}).of_step().all(); };
  setting run = of_mesh(4, 4, 1, 16);
  run.sequence = 4096;
  setting changed = run;
  changed.recompute = recompute_kind::selective;
  CHECK(device(changed) < device(run));
  CHECK(seconds(changed) > seconds(run));
  const setting selective = changed;
  changed.recompute = recompute_kind::full;
  CHECK(device(changed) < device(selective));
  CHECK(seconds(changed) > seconds(selective));
  changed = run;
  changed.schedule.name = "gpipe";
  CHECK(device(changed) > device(run));
  changed = run;
  changed.offload.optimizer = belay::tier::host;
  CHECK(device(changed) < device(run));
  CHECK(fullest(llama, changed)[2] > fullest(llama, run)[2]);
  CHECK(seconds(changed) > seconds(run));
  // What is whole to the step's end needs the parameters of all layers, and is gathered once instead of in each pass.
  changed = run;
  changed.zero = 3;
  setting kept = changed;
  kept.gathers = gathers_kind::step;
  count whole = 0;
  for (const parameter_block& each : blocks_of(llama, kept, 0)) whole += 2 * each.all();
  CHECK(gathered_bytes_of(blocks_of(llama, kept, 0), kept) == whole);
  CHECK(device(kept) > device(changed));
  const time_constants slow{.bandwidth = 1e9};
  CHECK(time_model(llama, kept, slow).of_step().all() < time_model(llama, changed, slow).of_step().all());
  for (changed = run; changed.zero < 3;) {
    const count before = states_of(blocks_of(llama, changed, 0), changed, store_types(changed.dtype)).all();
    ++changed.zero;
    CHECK(states_of(blocks_of(llama, changed, 0), changed, store_types(changed.dtype)).all() < before);
  }
}

TEST_CASE("a search finds what fits and can be, fastest first, and a larger budget is never slower") {
  const architecture llama = model("llama-3-70b");
  setting base;
  base.sequence = 4096;
  base.global_batch = 2048;
  double before = 0;
  for (const std::size_t gigabytes : {std::size_t{80}, std::size_t{40}, std::size_t{20}}) {
    belay::budget limit;
    limit[belay::tier::device] = gigabytes << 30U;
    plan_search search(llama, base, 1024, limit, {});
    const std::vector<candidate> found = search.run();
    REQUIRE(!found.empty());
    CHECK(found.front().seconds >= before);
    before = found.front().seconds;
    CHECK(search.least().bytes[0] <= found.front().bytes[0]);
    for (std::size_t i = 0; i < found.size(); i += found.size() / 50 + 1) {
      const candidate& one = found[i];
      CHECK(one.run.ranks() == 1024);
      CHECK_NOTHROW(check(one.run, llama));
      CHECK(one.seconds >= found.front().seconds);
      const plan_result plan = estimated_plan(llama, one.run, {}, "as it was searched");
      CHECK(!plan.shortage(limit));
      CHECK(plan.fullest(belay::tier::device).total(belay::tier::device) == one.bytes[0]);
      CHECK(plan.time.all() == one.seconds);
    }
  }
  belay::budget none;
  none[belay::tier::device] = std::size_t{1} << 30U;
  plan_search search(llama, base, 8, none, {});
  CHECK(search.run().empty());
  CHECK(search.least().bytes[0] > none[belay::tier::device]);
}

TEST_CASE("numbers are for people") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(70'553'706'496) == "70,553,706,496");
  CHECK(ranks_text({{0, 3}, {8, 8}}) == "0-3, 8");
  CHECK(constants_text({}) == "alpha 10.0 us a message, beta 20.000 ps a byte (50.0 GB/s), flops 400.0 TFLOP/s a rank");
}
