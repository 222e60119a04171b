// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/clip.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "../parallel/support/replica_trainer.hpp"

using belay::zero_stage;

TEST_CASE("the norm has the same bits with and without sharded optimizer state") {
  for (std::size_t ranks : {1u, 2u, 3u, 4u}) {
    CAPTURE(ranks);
    for (unsigned k : {0U, 1U, 2U}) {
      const belay::ownership_unit unit(k);
      const auto whole = fake::train<float>(ranks, zero_stage::none, 3, 16384, unit);
      const auto sharded = fake::train<float>(ranks, zero_stage::optimizer_state, 3, 16384, unit);
      CHECK(whole.norms == sharded.norms);
      CHECK(whole.values == sharded.values);
    }
  }
}

TEST_CASE("the norm counts every parameter once") {
  for (std::size_t ranks : {1u, 3u}) {
    const auto result = fake::train<double>(ranks, zero_stage::optimizer_state, 1);
    double squares = 0;
    for (const auto& gradient : result.gradients)
      for (double g : gradient) squares += g * g;
    CHECK(result.norms[0] == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
  }
}

TEST_CASE("an entry is the sum of its chunks in order, and entries are added in the order of the model") {
  const std::vector<std::size_t> sizes{9 * belay::parameter_chunk + 7, 1, 20000, 0};
  fake::shared_state alone(1);
  fake::queue queue;
  const fake::group group(alone, queue, 0);
  std::vector<double> norms;
  for (unsigned k : {0U, 1U, 3U}) {
    const belay::ownership_unit unit(k);
    fake::rank_state<float> state(group, zero_stage::optimizer_state, 4096, sizes, unit);
    belay::norm_table table;
    std::vector<belay::norm_place> places;
    for (std::size_t size : sizes) places.push_back({table.add(size), 0});
    table.widen(unit);
    std::vector<double> memory(table.entries());
    belay::gradient_norm<float> norm(table, places, memory);
    state.buckets->begin(1);
    state.backward(1, 0);
    const double value = norm(state.buckets->finish(belay::target_tokens{1}), group).value();
    double all = 0;
    for (const auto& parameter : state.parameters) {
      double of_parameter = 0;
      double of_entry = 0;
      for (std::size_t first = 0; first < parameter.local_size(); first += belay::parameter_chunk) {
        if (first % unit.elements() == 0) of_parameter += std::exchange(of_entry, 0.0);
        of_entry += belay::kernel::sum_of_squares(parameter.gradient() + first,
                                                  std::min(belay::parameter_chunk, parameter.local_size() - first));
      }
      all += of_parameter + of_entry;
    }
    CHECK(value == std::sqrt(all));
    norms.push_back(value);
    CHECK(value == doctest::Approx(norms.front()).epsilon(1e-13));
  }
}

TEST_CASE("parts of one parameter on different ranks are folded in order, and stages do not change a bit") {
  // One rank with two parameters against two ranks, each with the part or stage that the other lacks.
  const std::vector<std::size_t> sizes{5000, 9000};
  const auto norm_of = [&](std::size_t ranks) {
    fake::shared_state shared(ranks);
    std::vector<fake::queue> queues(ranks);
    std::array<fake::shared_state, 2> alone{fake::shared_state(1), fake::shared_state(1)};
    double value = 0;
    fake::run_ranks(ranks, [&](int rank) {
      const auto number = static_cast<std::size_t>(rank);
      belay::norm_table table;
      std::vector<belay::norm_place> places;
      std::vector<std::size_t> mine;
      for (std::size_t p = 0; p < sizes.size(); ++p) {
        table.add(sizes[p]);
        if (ranks == 1 || p == number) {
          places.push_back({p, 0});
          mine.push_back(sizes[p]);
        }
      }
      std::vector<double> memory(table.entries());
      belay::gradient_norm<float> norm(table, places, memory);
      fake::rank_state<float> state(fake::group(alone[number], queues[number], 0), zero_stage::none, 4096, mine);
      state.buckets->begin(1);
      for (std::size_t p = 0; p < mine.size(); ++p)
        for (std::size_t i = 0; i < mine[p]; ++i)
          state.parameters[p].gradient()[i] = static_cast<float>(std::sin(static_cast<double>(i * mine[p])));
      state.buckets->contributed(0, mine.size(), 0);
      const auto result =
          norm(state.buckets->finish(belay::target_tokens{3}), fake::group(shared, queues[number], rank));
      if (rank == 0) value = result.value();
    });
    return value;
  };
  CHECK(norm_of(1) == norm_of(2));
}

TEST_CASE("clipping follows the usual formula and leaves small gradients alone") {
  CHECK(belay::gradient_norm_value{4.0}.clip(1.0).value() == 1.0 / (4.0 + 1e-6));
  CHECK(belay::gradient_norm_value{0.5}.clip(1.0).value() == 1.0);
  CHECK(belay::gradient_norm_value{0.0}.clip(1.0).value() == 1.0);
  CHECK(belay::clip_factor::none().value() == 1.0);
}

TEST_CASE("one gradient that is not finite is seen by all ranks") {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (zero_stage stage : {zero_stage::none, zero_stage::optimizer_state}) {
      fake::shared_state replicas(3);
      std::vector<fake::queue> queues(3);
      fake::run_ranks(3, [&](int rank) {
        const fake::group group(replicas, queues[static_cast<std::size_t>(rank)], rank);
        fake::rank_state<float> state(group, stage, 1024);
        belay::norm_table table;
        std::vector<belay::norm_place> places;
        for (std::size_t size : fake::awkward_sizes) places.push_back({table.add(size), 0});
        std::vector<double> memory(table.entries());
        belay::gradient_norm<float> norm(table, places, memory);
        state.buckets->begin(1);
        if (rank == 2) state.parameters[3].gradient()[9999] = bad;
        state.backward(0, 0);
        CHECK_FALSE(norm(state.buckets->finish(belay::target_tokens{1}), group).finite());
      });
    }
}

TEST_CASE("memory or places that do not fit the table are refused") {
  belay::norm_table table;
  table.add(5000);
  std::vector<double> memory(2);
  CHECK(table.entries() == 2);
  CHECK(table.bytes() == 16);
  CHECK_THROWS_WITH_AS(table.add(std::vector<std::size_t>(3, std::numeric_limits<std::size_t>::max() / 4)),
                       doctest::Contains("more than any memory holds"), belay::size_error);
  CHECK(table.bytes() == 16);
  CHECK_THROWS_AS(belay::gradient_norm<float>(table, {{0, 0}}, std::span(memory).first(1)), belay::usage_error);
  CHECK_THROWS_AS(belay::gradient_norm<float>(table, {{0, 1}}, memory), belay::usage_error);
  CHECK_THROWS_AS(belay::gradient_norm<float>(table, {{1, 0}}, memory), belay::usage_error);
  CHECK_THROWS_WITH_AS(belay::gradient_norm<float>(table, {{0, 0}, {0, 0}}, memory),
                       doctest::Contains("two parameters of the buckets stand at part 0 of parameter 0"),
                       belay::usage_error);
}

TEST_CASE("buckets that the table does not describe are refused before anything is written beside it") {
  fake::shared_state alone(1);
  fake::queue queue;
  const fake::group group(alone, queue, 0);
  fake::rank_state<float> state(group, zero_stage::none, 1024, {8, 5000});
  state.buckets->begin(1);
  state.backward(0, 0);
  const auto gradients = state.buckets->finish(belay::target_tokens{1});
  std::vector<double> memory(2);
  belay::norm_table one;
  one.add(8);
  belay::gradient_norm<float> without_second(one, {{0, 0}}, std::span(memory).first(1));
  CHECK_THROWS_WITH_AS(static_cast<void>(without_second(gradients, group)),
                       doctest::Contains("parameter number 1 has no place"), belay::usage_error);
  belay::norm_table small;
  small.add(8);
  small.add(100);
  belay::gradient_norm<float> too_small(small, {{0, 0}, {1, 0}}, memory);
  CHECK_THROWS_WITH_AS(static_cast<void>(too_small(gradients, group)),
                       doctest::Contains("more elements than its place"), belay::usage_error);
}

TEST_CASE("buckets that cut inside an entry of the table are refused") {
  fake::shared_state shared(2);
  std::vector<fake::queue> queues(2);
  fake::run_ranks(2, [&](int rank) {
    const fake::group group(shared, queues[static_cast<std::size_t>(rank)], rank);
    fake::rank_state<float> state(group, zero_stage::optimizer_state, 1U << 20U, {2 * belay::parameter_chunk});
    belay::norm_table table;
    table.add(2 * belay::parameter_chunk);
    table.widen(belay::ownership_unit(1));
    std::vector<double> memory(table.entries());
    belay::gradient_norm<float> norm(table, {{0, 0}}, memory);
    state.buckets->begin(1);
    state.backward(0, 0);
    const auto gradients = state.buckets->finish(belay::target_tokens{1});
    CHECK_THROWS_WITH_AS(static_cast<void>(norm(gradients, group)),
                         doctest::Contains("make the buckets with table.unit()"), belay::usage_error);
  });
}
