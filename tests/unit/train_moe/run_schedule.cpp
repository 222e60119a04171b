// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/run_schedule.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"

namespace {

using train_moe::options;
using counts = std::vector<std::size_t>;

options run_of(int ranks, const std::string& schedule, std::size_t layers = 4, std::size_t micro_batches = 8) {
  options run;
  run.mesh = {.pipeline = ranks};
  run.schedule = schedule;
  run.micro_batches = micro_batches;
  run.model.layers = layers;
  return run;
}

std::string refusal(const options& run) {
  try {
    static_cast<void>(layers_of_stages(run, schedule_of(run).stages()));
  } catch (const belay::input_error& problem) {
    return problem.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every schedule has a table by its name, on one rank too") {
  for (const std::string& name : belay::schedule::named_schedule::names(2)) {
    CAPTURE(name);
    CHECK(schedule_of(run_of(1, name)).micro_batches() == 8);
    CHECK(schedule_of(run_of(2, name)).ranks() == 2);
  }
}

TEST_CASE("layers go to stages in order, the first ones have one more, and a rank has those of its chunks") {
  options run = run_of(2, "zb-v", 7);
  CHECK(layers_of_stages(run, 4) == counts{2, 2, 2, 1});
  run.stage_layers = {0, 3, 3, 1};
  CHECK(layers_of_stages(run, 4) == counts{0, 3, 3, 1});
  const auto table = schedule_of(run);
  const auto parts = parts_of_rank(run, table, 0);  // the first stage and the last
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].embedding == model::with_embedding::yes);
  CHECK(parts[0].layer_count == 0);
  CHECK(parts[1].head == model::with_head::yes);
  CHECK(parts[1].first_layer == 6);
  CHECK(parts[1].index == 3);
  CHECK(most_layers_of_rank(run, table) == 6);
}

TEST_CASE("a schedule that the run cannot have is refused with what would work") {
  options few = run_of(2, "dualpipe-v", 4, 6);
  few.mesh.data = 2;
  options csv = run_of(2, "own.csv", 4, 1);
  const auto with_rows = [&](const std::string& text) {
    csv.schedule_text = text;
    return csv;
  };
  options uneven = run_of(2, "interleaved:2");
  const auto with_layers = [&](counts layers) {
    uneven.stage_layers = std::move(layers);
    return uneven;
  };
  for (const auto& [run, part] : std::vector<std::pair<options, std::string>>{
           {run_of(2, "zigzag"), "'zigzag' is no schedule; there are gpipe, 1f1b, interleaved:V[:G]"},
           {run_of(2, "zigzag"), "greedy and auto choose by costs, and a name that ends in .csv is a file"},
           {few,
            "--schedule dualpipe-v on pp=2 needs at least 4 micro-batches in each pipeline, and --micro-batches 6 "
            "with dp=2 gives 3: take --micro-batches 8 or more"},
           {run_of(4, "interleaved:2:3"), "--schedule interleaved:2:3: schedule interleaved:2:3 has groups of 3"},
           {run_of(2, "interleaved:3"),
            "--mesh pp=2 and --schedule interleaved:3, 3 chunks a rank, make 6 stages, and the model has 4 layers: "
            "each "
            "stage has one; pp times chunks is at most 4"},
           {run_of(5, "1f1b"), "--mesh pp=5 make 5 stages"},
           {with_layers({2, 2}), "--stage-layers 2,2: 2 numbers, and --schedule interleaved:2 on pp=2 has 4 stages"},
           {with_layers({1, 1, 1, 2}), "5 layers together, and the model has 4, as in 1,1,1,1"},
           {with_layers({1, 0, 2, 1}), "stage 1 has no layer"},
           {with_rows("belay-schedule 1,own,2,1\nF0,SA0>1,RG0<1,B0\nRA0<0,X,SG0>0\n"),
            "--schedule own.csv: schedule CSV, row 3, column 2"},
           {with_rows("belay-schedule 1,own,2,1\nF0,SA0>1,RG0<1,B0\nRA0<0,F0,SG0>0\n"),
            "--schedule own.csv: row 3: stage 1 never runs the backward of micro-batch 0"},
           {with_rows("0F0,0B0\n1F0\n"), "--schedule own.csv: row 2: stage 1 never runs the backward of micro-batch 0"},
           {with_rows("0F0,0B0\n1F0,1F0,1B0\n"),
            "--schedule own.csv: row 2: stage 1 runs the forward of micro-batch 0 twice (action 1)"},
           {with_rows("0F0,0I0,0W0,0W0\n1F0,1B0\n"),
            "row 1: stage 0 computes the weight gradient of micro-batch 0 twice (action 3)"},
           {with_rows("0F0,0W0\n1F0,1B0\n"),
            "row 1: stage 0 computes the weight gradient of micro-batch 0 before its input gradient (action 1)"},
           {with_rows("0F0,0B0,0W0\n1F0,1B0\n"),
            "row 1: stage 0 runs the backward of micro-batch 0 as a whole and in halves (action 2)"},
           {with_rows("0F0,0B0\n1UNSHARD,1UNSHARD,1F0,1B0\n"),
            "row 2: stage 1 gathers parameters that are gathered (action 1)"},
           {with_rows("belay-schedule 2,own,2,1,2,loop\nF0,F0.1,B0.1,B0\nF0.1,B0.1,F0,B0\n"),
            "rank 0 waits before the forward of micro-batch 0 in stage 2"},
           {with_rows("belay-schedule 1,own,1,1\nF0,B0\n"),
            "--schedule own.csv: a table of 1 ranks and 1 micro-batches, and the run has pp=2 and 1 micro-batches"}}) {
    CAPTURE(part);
    const std::string said = refusal(run);
    CAPTURE(said);
    CHECK(said.find(part) != std::string::npos);
  }
}

TEST_CASE("a file of a schedule that is empty is not taken for a name") {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "belay_empty_schedule.csv";
  std::ofstream(path).close();
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::read_schedule(path.string())),
                       doctest::Contains("the file is empty"), belay::input_error);
  std::filesystem::remove(path);
}

TEST_CASE("pairs overlap where they are asked for, and the table has them then") {
  options run = run_of(1, "1f1b");
  CHECK(overlapped_pairs(run, schedule_of(run)) == 0);
  run.overlap_pairs = true;
  CHECK(overlapped_pairs(run, schedule_of(run)) == 7);
  run = run_of(2, "dualpipe-v:atomic");
  CHECK(overlapped_pairs(run, schedule_of(run)) == 0);  // its pairs run one after the other
  run.overlap_pairs = true;
  CHECK(overlapped_pairs(run, schedule_of(run)) == belay::schedule::pairs_of(schedule_of(run)));
}
