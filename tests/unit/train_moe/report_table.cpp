// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/report_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace {

using train_moe::report_table;

train_moe::options run_of(const belay::axes& mesh, std::size_t layers, std::size_t micro_batches, std::size_t experts) {
  train_moe::options run;
  run.mesh = mesh;
  run.micro_batches = micro_batches;
  run.model.layers = layers;
  run.model.experts = experts;
  return run;
}

}  // namespace

TEST_CASE("the report of 61 layers, 256 experts and 4,096 micro-batches on 1,024 ranks is at most 8 MiB a rank") {
  const train_moe::options run = run_of({.pipeline = 4, .data = 4, .expert = 64}, 61, 4096, 256);
  REQUIRE(run.mesh.ranks() == 1024);
  const std::size_t bytes = report_table(run, 8).size() * sizeof(double);
  CHECK(bytes <= std::size_t{8} << 20);
  CHECK(run.model.layers * run.micro_batches * run.model.experts * 16 > std::size_t{8} << 20);  // were it not folded
  std::printf("report table: 61 layers, 256 experts, 4096 micro-batches, 1024 ranks: %zu bytes a rank\n", bytes);
}

TEST_CASE("every number of the report has a place of its own, and there are no others") {
  for (std::size_t layers : {1U, 3U})
    for (std::size_t micro_batches : {1U, 4U})
      for (std::size_t experts : {1U, 5U}) {
        const train_moe::options run = run_of({.data = 3}, layers, micro_batches, experts);
        const report_table table(run, 2);
        std::vector<int> uses(table.size());
        for (std::size_t m = 0; m < micro_batches; ++m) ++uses.at(table.loss(m));
        for (std::size_t layer = 0; layer < layers; ++layer) {
          for (std::size_t m = 0; m < micro_batches; ++m) ++uses.at(table.balance(layer, m));
          for (std::size_t e = 0; e < experts; ++e) ++uses.at(table.tokens(layer, e));
        }
        for (std::size_t rank = 0; rank < 3; ++rank)
          for (std::size_t which = 0; which < report_table::numbers; ++which)
            ++uses.at(table.of_rank(rank, static_cast<report_table::number>(which)));
        for (std::size_t stage = 0; stage < 2; ++stage)
          for (std::size_t kind = 0; kind < report_table::kinds; ++kind)
            ++uses.at(table.of_stage(stage, static_cast<belay::schedule::action_kind>(kind)));
        CHECK(std::count(uses.begin(), uses.end(), 1) == static_cast<std::ptrdiff_t>(uses.size()));
      }
}
