// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A program that was built with one trainer names the others that its flags ask for, with what builds them.
#include "train_moe/missing_trainer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#define BELAY_TRAIN_MOE_TRAINERS "fp32"
#include "train_moe/advice.hpp"
#include "train_moe/host_ranks.cpp"
#include "train_moe/planned_run.cpp"

namespace {

train_moe::command_line small() {
  train_moe::command_line line;
  line.run.model = {.vocab = 32,
                    .hidden = 16,
                    .expert_width = 16,
                    .layers = 2,
                    .heads = 2,
                    .kv_heads = 1,
                    .head_dim = 8,
                    .experts = 2,
                    .experts_per_token = 1,
                    .positions = 8};
  line.run.mesh = {};
  line.run.sequence = 8;
  line.run.micro_batches = 2;
  line.run.micro_batch_size = 1;
  return line;
}

std::string said(const train_moe::command_line& line) {
  try {
    static_cast<void>(train_moe::planned_run(line));
    return "";
  } catch (const belay::input_error& problem) {
    return problem.what();
  }
}

}  // namespace

// In the place of the trainer, which this program is not linked with.
void train_moe::run_rank_fp32(prepared_run&, belay::rank&, belay::run&) { throw belay::input_error("fp32 was asked"); }

TEST_CASE("a trainer that is missing is named, with what builds it") {
  train_moe::command_line line = small();
  CHECK(said(line).find("fp32 was asked") != std::string::npos);
  line.run.dtype = belay::dtype::bf16;
  const std::string bf16 = said(line);
  CHECK(bf16.find("--dtype bf16: this program was built without the trainer bf16") != std::string::npos);
  CHECK(bf16.find("examples/run --dtype bf16 builds it") != std::string::npos);
  CHECK(bf16.find("-DBELAY_TRAINERS=\"fp32;bf16\"") != std::string::npos);
  line = small();
  line.run.freeze = train_moe::freeze_kind::parts;
  CHECK(said(line).find("--freeze attention,experts,embedding: this program was built without the trainer "
                        "frozen_parts") != std::string::npos);
}

TEST_CASE("advice lists what it cannot rehearse, last and without numbers") {
  train_moe::options run = small().run;
  run.budget[belay::tier::device] = 1;
  const auto rehearse = [](const train_moe::options& changed) {
    if (changed.dtype == belay::dtype::bf16) throw train_moe::missing_trainer("--dtype bf16", "bf16", "fp32");
    belay::rank_plan rank;
    rank.add(belay::tier::device, "parameters", changed.recompute == train_moe::options{}.recompute ? 100 : 50);
    belay::rehearsal_result out;
    out.plan = belay::plan({rank});
    return out;
  };
  const std::vector<std::string> lines =
      train_moe::rehearsed_advice(belay::tier::device, run, rehearse(run).plan, rehearse);
  REQUIRE(!lines.empty());
  CHECK(lines.back() ==
        "--dtype bf16: parameters and activations take half; not rehearsed: this program was built without its "
        "trainer");
  CHECK(std::count_if(lines.begin(), lines.end(),
                      [](const std::string& line) { return line.find("not rehearsed") != std::string::npos; }) == 1);
}
