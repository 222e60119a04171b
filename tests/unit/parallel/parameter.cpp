// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/parameter.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "belay/comm/mesh.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/operand.hpp"

namespace {

belay::parameter_spec spec_of(belay::parameter_shape shape, const char* name = "layers.0.weight") {
  return {.name = name, .shape = shape, .first_values = belay::initial::normal(0.02)};
}

std::vector<double> whole(belay::parameter_shape shape, std::uint64_t seed, const char* name = "layers.0.weight") {
  belay::parameter<double> p{spec_of(shape, name)};
  std::vector<double> values(p.local_size());
  p.bind(values.data(), nullptr);
  p.initialise(seed);
  return values;
}

template <std::size_t Dim>
void check_parts(belay::parameter_shape shape, std::size_t ranks) {
  const std::vector<double> all = whole(shape, 7);
  std::vector<int> seen(all.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    belay::parameter<double, belay::shard<Dim>> p{spec_of(shape), belay::even_part(shape[Dim], ranks, rank)};
    std::vector<double> values(p.local_size(), -1);
    p.bind(values.data(), nullptr);
    p.initialise(7);
    p.each_run([&](std::size_t global, std::size_t local, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        CHECK(values[local + i] == all[global + i]);
        ++seen[global + i];
      }
    });
  }
  for (int times : seen) CHECK(times == 1);
}

// The same cut on two dimensions, or twice on one.
template <class Placement>
void check_boxes(belay::parameter_shape shape, const belay::axes& mesh) {
  const std::vector<double> all = whole(shape, 7);
  std::vector<int> seen(all.size());
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    belay::rehearsal::rank of(rank, static_cast<int>(mesh.ranks()));
    belay::parameter<double, Placement> p{spec_of(shape), belay::mesh{of, mesh}};
    std::vector<double> values(p.local_size(), -1);
    p.bind(values.data(), nullptr);
    p.initialise(7);
    CHECK(p.local_box() == belay::local_box<Placement>(shape.extents(), mesh, belay::coordinate_of(mesh, rank)));
    belay::parameter<double, Placement> same{spec_of(shape), p.local_box()};
    CHECK(same.local_shape() == p.local_shape());
    p.each_run([&](std::size_t global, std::size_t local, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        CHECK(values[local + i] == all[global + i]);
        ++seen[global + i];
      }
    });
  }
  for (int times : seen) CHECK(times == 1);
}

}  // namespace

TEST_CASE("a parameter starts with the same values however it is sharded") {
  for (std::size_t ranks : {1u, 2u, 3u, 5u}) {
    CAPTURE(ranks);
    check_parts<0>({7, 3, 2}, ranks);
    check_parts<1>({7, 3, 2}, ranks);
    check_parts<2>({7, 3, 4}, ranks);
    check_parts<0>({1}, ranks);
    check_parts<0>({0, 4}, ranks);
  }
}

TEST_CASE("also where two axes cut it, evenly or not, into boxes that may be empty") {
  using belay::axis;
  using belay::shard;
  for (const belay::axes& mesh : {belay::axes{}, {.expert = 3}, {.tensor = 2}, {.expert = 2, .tensor = 3}}) {
    for (const belay::parameter_shape shape : {belay::parameter_shape{5, 3, 2}, {1, 4, 2}, {2, 0, 1}, {4, 4, 1}}) {
      check_boxes<belay::placed<shard<0, axis::expert>, shard<1, axis::tensor>>>(shape, mesh);
      check_boxes<belay::placed<shard<2, axis::expert>, shard<1, axis::tensor>>>(shape, mesh);
      check_boxes<belay::placed<shard<1, axis::expert>, shard<1, axis::tensor>>>(shape, mesh);
    }
  }
}

TEST_CASE("seed and name decide the first values") {
  CHECK(whole({64}, 1) == whole({64}, 1));
  CHECK(whole({64}, 1) != whole({64}, 2));
  CHECK(whole({64}, 1, "a") != whole({64}, 1, "b"));
}

TEST_CASE("first values keep their bits from version to version: a run goes on from another version's checkpoint") {
  CHECK(belay::counted_normal(7, "wte")(0) == -0x1.7eec5ec01a6a4p-2);
  CHECK(belay::counted_normal(7, "layers.0.weight")(12345678901) == -0x1.9f95fabdc56c4p-3);
  CHECK(belay::counted_normal(7, "\xff z")(1) == 0x1.1c56ef641ff92p-1);
}

TEST_CASE("a stack that joins tensors begins with the values that each would have alone") {
  constexpr std::size_t entries = 3, size = 2 * 5;
  using stacked = belay::shard<0, belay::axis::expert>;
  belay::parameter_spec spec{"w13", {entries, 4, 5}, belay::initial::normal(1), belay::weight_decay::yes};
  spec.joins = {"w1", "w3"};
  for (const belay::local_part part : {belay::local_part{0, 3}, belay::local_part{1, 2}}) {
    belay::parameter<double, stacked> joined{spec, part};
    std::vector<double> values(joined.local_size());
    joined.bind(values.data(), nullptr);
    joined.initialise(7);
    for (std::size_t tensor = 0; tensor < 2; ++tensor) {
      belay::parameter<double, stacked> alone{{spec.joins[tensor], {entries, 2, 5}, belay::initial::normal(1)}, part};
      std::vector<double> expected(alone.local_size());
      alone.bind(expected.data(), nullptr);
      alone.initialise(7);
      for (std::size_t e = 0; e < part.count; ++e)
        for (std::size_t i = 0; i < size; ++i) CHECK(values[(2 * e + tensor) * size + i] == expected[e * size + i]);
    }
  }
  spec.joins.push_back("w5");  // four rows, three tensors
  CHECK_THROWS_AS((belay::parameter<double, stacked>{spec, {0, 3}}), belay::usage_error);
}

TEST_CASE("normal first values have the mean and deviation asked for, and no correlation between neighbours") {
  const std::vector<double> values = whole({100000}, 3);
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double square = 0;
  double neighbours = 0;
  std::size_t beyond_two = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    square += values[i] * values[i];
    if (i > 0) neighbours += values[i] * values[i - 1];
    if (std::abs(values[i]) > 0.04) ++beyond_two;
  }
  CHECK(std::abs(mean) < 0.02 * 4 / std::sqrt(n));
  CHECK(std::sqrt(square / n) == doctest::Approx(0.02).epsilon(0.01));
  CHECK(std::abs(neighbours / square) < 0.015);
  CHECK(static_cast<double>(beyond_two) / n == doctest::Approx(0.0455).epsilon(0.05));
}

TEST_CASE("a constant parameter is constant and a filled one asks its filler for global offsets") {
  belay::parameter<float> norm{
      {.name = "norm", .shape = {5}, .first_values = belay::initial::constant(1), .decay = belay::weight_decay::no}};
  std::vector<float> values(5);
  CHECK_THROWS_AS(norm.initialise(1), belay::usage_error);  // no memory yet
  norm.bind(values.data(), nullptr);
  norm.initialise(1);
  CHECK(values == std::vector<float>(5, 1.0F));
  CHECK(norm.decay() == belay::weight_decay::no);

  belay::parameter<float, belay::shard<0>> experts{
      {.name = "e", .shape = {4, 3}, .first_values = belay::initial::filled()}, {1, 2}};
  std::vector<float> part(6);
  experts.bind(part.data(), nullptr);
  CHECK_THROWS_AS(experts.initialise(1), belay::usage_error);
  experts.fill([](std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i);
  });
  CHECK(part == std::vector<float>{3, 4, 5, 6, 7, 8});
  CHECK(experts.local_shape() == belay::parameter_shape{2, 3});
  CHECK(experts.global_size() == 12);
}

TEST_CASE("a part outside of the parameter is refused") {
  using sharded = belay::parameter<float, belay::shard<1>>;
  CHECK_THROWS_AS(sharded(spec_of({2, 4}), {3, 2}), belay::usage_error);
  CHECK_THROWS_AS(sharded(spec_of({2, 4}), {5, 0}), belay::usage_error);
  CHECK_THROWS_AS(sharded(spec_of({2, 4}), {1, static_cast<std::size_t>(-1)}), belay::usage_error);
  CHECK_THROWS_AS(sharded(spec_of({2}), {0, 1}), belay::usage_error);
  CHECK(sharded(spec_of({2, 4}), {4, 0}).local_size() == 0);
  using boxed = belay::parameter<float, belay::placed<belay::shard<0>, belay::shard<1, belay::axis::tensor>>>;
  CHECK_THROWS_WITH_AS(boxed(spec_of({2, 4}), belay::tensor_box{{{0, 2}, {3, 5}}}),
                       doctest::Contains("box [0:2, 3:5] lies outside of [0:2, 0:4]"), belay::usage_error);
  CHECK_THROWS_AS(boxed(spec_of({2, 4}), belay::tensor_box{{{0, 2}}}), belay::usage_error);
  CHECK_THROWS_WITH_AS(boxed(spec_of({2}), belay::tensor_box{{{0, 2}}}),
                       doctest::Contains("of 1 dimensions cannot be cut along dimension 1"), belay::usage_error);
}

TEST_CASE("a frozen parameter is filled like any other and can only be read") {
  belay::parameter<float, belay::replicate, belay::frozen> p{spec_of({8})};
  static_assert(std::is_same_v<decltype(p.value()), const float*>);
  std::vector<float> values(8);
  p.bind(values.data());
  p.initialise(7);
  CHECK(p.value()[3] == values[3]);
  CHECK(values[3] != 0.0F);
}

TEST_CASE("a parameter's values are a view of the local part, of as many dimensions as it has") {
  belay::parameter<float, belay::shard<0>> p{spec_of({4, 3, 2}), {1, 2}};
  std::vector<float> values(12), gradients(12);
  p.bind(values.data(), gradients.data());
  const belay::view<const float, 3> part = p.values();
  CHECK(part.data() == values.data());
  CHECK(part.shape() == belay::extents<3>{2, 3, 2});
  CHECK(p.gradient_values().as<3>().data() == gradients.data());
  CHECK(belay::stack_of(belay::transposed(p.values())).height() == 2);
  CHECK_THROWS_WITH_AS((static_cast<void>(belay::operand_of(p.values()))),
                       doctest::Contains("a parameter of 3 dimensions is taken for a view of 2"), belay::usage_error);
}

TEST_CASE("parameters can be kept in a vector") {
  std::vector<belay::parameter<float>> list;
  for (int i = 0; i < 5; ++i) list.emplace_back(spec_of({3}));
  CHECK(list[4].name() == "layers.0.weight");
  CHECK(list[4].shape() == belay::parameter_shape{3});
}

TEST_CASE("a shape whose bytes wrap round is refused and named") {
  constexpr std::size_t half = std::size_t{1} << 32;
  CHECK(belay::parameter_shape{half, half, 3}.size() > belay::largest_size);
  CHECK(belay::parameter_shape{half, half, 0}.size() == 0);
  CHECK_THROWS_WITH_AS(
      (belay::parameter<float>{{.name = "w", .shape = {half, half / 4}}}),
      doctest::Contains("parameter w: 4294967296x1073741824 elements of 4 bytes are more than any memory holds"),
      belay::size_error);
}
