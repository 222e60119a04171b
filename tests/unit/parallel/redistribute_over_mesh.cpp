// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tensors over the axes of a mesh, from every list of placements to every other: what a rank then has is its box of the
// whole tensor.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/redistribute.hpp"

namespace {

using belay::axes;
using belay::axis;
using belay::partial;
using belay::placed;
using belay::replicate;
using belay::shard;

using mesh_type = belay::mesh;
template <class Placement, class T = float>
using tensor = belay::sharded<T, Placement, mesh_type>;

using experts = shard<0, axis::expert>;
using columns = shard<1, axis::tensor>;
using both = placed<experts, columns>;
using turned = placed<columns, experts>;
using inner = placed<shard<2, axis::expert>, shard<1, axis::tensor>>;
using twice = placed<shard<1, axis::data>, shard<1, axis::tensor>>;
using three = placed<shard<0, axis::tensor>, shard<1, axis::data>, shard<2, axis::expert>>;
using sums = partial<belay::sum, axis::tensor>;
using sums_of_experts = placed<experts, sums>;
using sums_of_all = placed<partial<belay::sum, axis::data>, sums>;

// Whole numbers, so that the order of a sum changes nothing.
float element(std::size_t i) { return static_cast<float>((i * 37) % 101); }

// An operand of each sum is the element times a weight of the rank; the weights of an axis add to one.
template <class Placement>
float operand(std::size_t i, const axes& mesh, const belay::coordinate& here) {
  float out = element(i);
  for (const belay::placement_entry& each : belay::entries_of<Placement>) {
    if (each.how != belay::placement_entry::placement_kind::partial) continue;
    const belay::axis_place place = belay::place_along(mesh, here, each.over);
    int weight = place.number + 1;
    if (place.number == 0)
      for (int other = 1; other < place.count; ++other) weight -= other + 1;
    out *= static_cast<float>(weight);
  }
  return out;
}

template <class Placement, class T = float>
std::vector<T> held(const belay::parameter_shape& shape, const mesh_type& mesh) {
  const belay::tensor_box box = belay::local_box<Placement>(shape.extents(), mesh);
  std::vector<T> out(box.elements());
  belay::each_common_run(
      belay::whole_box(shape.extents()), box, [&](std::size_t in_whole, std::size_t in_box, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i)
          out[in_box + i] = static_cast<T>(operand<Placement>(in_whole + i, mesh.shape(), mesh.coordinate()));
      });
  return out;
}

template <class T>
bool same_bits(std::span<const T> a, const std::vector<T>& b) {
  return a.size() == b.size() && (b.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

template <class From, class To, class T = float>
void check(const belay::parameter_shape& shape, const mesh_type& mesh) {
  std::vector<T> memory = held<From, T>(shape, mesh);
  tensor<From, T> from{mesh, shape, memory};
  const std::size_t needed = belay::redistribution_elements<To>(from);
  std::vector<T> storage(needed + 2, T(-7.0F));  // of which the ends stay
  const auto to = belay::redistribute<To>(std::move(from), std::span(storage).subspan(1, needed));
  CHECK(to.box() == belay::local_box<To>(shape.extents(), mesh));
  const std::vector<T> expected = held<To, T>(shape, mesh);
  if constexpr (belay::is_partial<From>)  // a sum of zeros has a sign of its own
    CHECK(std::equal(to.local().begin(), to.local().end(), expected.begin(), expected.end()));
  else
    CHECK(same_bits<T>(to.local(), expected));
  CHECK(static_cast<float>(storage.front()) == -7);
  CHECK(static_cast<float>(storage.back()) == -7);
}

const std::vector<axes> meshes{{},
                               {.tensor = 3},
                               {.expert = 3},
                               {.data = 2, .tensor = 2},
                               {.expert = 2, .tensor = 3},
                               {.data = 2, .expert = 2, .tensor = 2}};

template <class Body>
void on_meshes(Body body) {
  for (const axes& shape : meshes)
    static_cast<void>(belay::host::world{static_cast<int>(shape.ranks())}.run([&](belay::host::rank& rank) {
      const mesh_type mesh{rank, shape};
      for (const belay::parameter_shape of :
           {belay::parameter_shape{5, 3, 2}, {1, 4, 4}, {0, 2, 3}, {2, 0, 1}, {7, 2, 3}})
        body(of, mesh);
      return 0;
    }));
}

template <class From, class... To>
void check_all(const belay::parameter_shape& shape, const mesh_type& mesh) {
  (check<From, To>(shape, mesh), ...);
}

}  // namespace

TEST_CASE("parts become wholes and wholes parts, each axis by itself, evenly cut or not") {
  on_meshes([](const belay::parameter_shape& shape, const mesh_type& mesh) {
    check_all<replicate, replicate, experts, columns, both, turned, inner, twice, three>(shape, mesh);
    check_all<both, replicate, experts, columns, both, turned>(shape, mesh);
    check_all<turned, both, columns, placed<>>(shape, mesh);
    check_all<inner, replicate, shard<1, axis::tensor>, shard<2, axis::expert>>(shape, mesh);
    check_all<twice, replicate, shard<1, axis::data>>(shape, mesh);
    check_all<three, replicate, placed<shard<1, axis::data>>, placed<shard<2, axis::expert>, shard<0, axis::tensor>>>(
        shape, mesh);
    check_all<experts, both, columns>(shape, mesh);  // the last gathers one axis and cuts by the other
  });
}

TEST_CASE("a cut along one dimension becomes one along another, on one axis or several, evenly cut or not") {
  using rows_of_all = placed<shard<0, axis::data>, shard<0, axis::tensor>>;
  using turned_rows = placed<shard<0, axis::tensor>, shard<0, axis::data>>;
  using columns_of_all = placed<shard<1, axis::data>, shard<1, axis::tensor>>;
  using crossed = placed<shard<1, axis::expert>, shard<0, axis::tensor>>;
  on_meshes([](const belay::parameter_shape& shape, const mesh_type& mesh) {
    check_all<experts, shard<1, axis::expert>, shard<2, axis::expert>>(shape, mesh);
    check_all<columns, shard<0, axis::tensor>, shard<2, axis::tensor>>(shape, mesh);
    check_all<both, placed<shard<1, axis::expert>>, placed<experts, shard<2, axis::tensor>>,
              placed<experts, shard<0, axis::tensor>>, crossed, inner>(shape, mesh);
    check_all<rows_of_all, columns_of_all, placed<shard<0, axis::data>, columns>, turned_rows, crossed>(shape, mesh);
    check_all<columns_of_all, rows_of_all, placed<shard<2, axis::tensor>, shard<0, axis::data>>>(shape, mesh);
    check_all<three, placed<shard<2, axis::tensor>, shard<0, axis::data>, shard<1, axis::expert>>, twice>(shape, mesh);
    check_all<sums_of_experts, placed<shard<1, axis::expert>, sums>, placed<shard<2, axis::expert>, columns>>(shape,
                                                                                                              mesh);
    check<both, crossed, belay::bf16>(shape, mesh);
    check<experts, shard<1, axis::expert>, belay::bf16>(shape, mesh);
  });
}

// Of seeds: a mesh of up to 8 ranks, and a tensor of 1 to 3 dimensions with empty ones among them.
template <class From, class To>
void check_drawn(std::uint32_t seed, std::size_t least_dimensions) {
  std::mt19937 draw(seed);
  const auto up_to = [&](std::uint32_t most) { return static_cast<int>(draw() % most); };
  axes shape{};
  do {
    shape.data = 1 + up_to(3), shape.expert = 1 + up_to(4), shape.tensor = 1 + up_to(4);
  } while (shape.ranks() > 8);
  const auto extent = [&] { return static_cast<std::size_t>(draw() % 9); };
  const std::size_t dimensions = least_dimensions + draw() % (4 - least_dimensions);
  const std::size_t a = extent(), b = extent(), c = extent();
  const belay::parameter_shape of = dimensions == 1   ? belay::parameter_shape{a}
                                    : dimensions == 2 ? belay::parameter_shape{a, b}
                                                      : belay::parameter_shape{a, b, c};
  INFO("seed " << seed << ": " << shape.text() << ", " << belay::shape_text(of.extents()));
  static_cast<void>(belay::host::world{static_cast<int>(shape.ranks())}.run([&](belay::host::rank& rank) {
    const mesh_type mesh{rank, shape};
    check<From, To>(of, mesh);
    check<From, To, belay::bf16>(of, mesh);
    return 0;
  }));
}

TEST_CASE("drawn meshes and shapes, of 1 to 3 dimensions, with parts that are empty, are redistributed bit for bit") {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    check_drawn<experts, replicate>(seed, 1);
    check_drawn<shard<0, axis::tensor>, placed<shard<0, axis::expert>, shard<0, axis::tensor>>>(seed, 1);
    check_drawn<experts, shard<1, axis::expert>>(seed, 2);
    check_drawn<both, placed<shard<1, axis::expert>, shard<0, axis::tensor>>>(seed, 2);
    check_drawn<three, placed<shard<1, axis::tensor>, shard<2, axis::data>, shard<0, axis::expert>>>(seed, 3);
  }
}

TEST_CASE("operands of a sum become the whole or a part of it, and stay where the other axes change") {
  on_meshes([](const belay::parameter_shape& shape, const mesh_type& mesh) {
    check_all<sums, replicate, columns, shard<0, axis::tensor>, shard<2, axis::tensor>, sums>(shape, mesh);
    check_all<sums_of_experts, experts, both, sums, replicate, placed<experts, shard<0, axis::tensor>>, columns>(shape,
                                                                                                                 mesh);
    check_all<sums_of_all, replicate, twice, sums, placed<sums, shard<0, axis::data>>, shard<0, axis::tensor>>(shape,
                                                                                                               mesh);
  });
}

TEST_CASE("each change is one collective, and what stays takes none") {
  using belay::steps_between;
  using move_type = belay::redistribution_step::move_type;
  static_assert(steps_between<both, both>.size() == 0 && steps_between<both, turned>.size() == 0);
  static_assert(steps_between<both, experts>.size() == 1 && steps_between<both, experts>[0].over == axis::tensor &&
                steps_between<both, experts>[0].what == move_type::gather);
  static_assert(steps_between<sums_of_experts, both>.size() == 1 &&
                steps_between<sums_of_experts, both>[0].what == move_type::reduce_scatter);
  static_assert(steps_between<sums_of_experts, placed<shard<0, axis::tensor>, shard<1, axis::expert>>>[0].what ==
                move_type::reduce);  // dimension 0 is still cut by experts
  static_assert(steps_between<experts, shard<1, axis::expert>>.size() == 1 &&
                steps_between<experts, shard<1, axis::expert>>[0].what == move_type::exchange);
  static_assert(steps_between<both, placed<shard<1, axis::expert>, shard<2, axis::tensor>>>.size() == 2 &&
                steps_between<both, placed<shard<1, axis::expert>, shard<2, axis::tensor>>>[1].what ==
                    move_type::exchange);
  // Each waits for the other to leave its dimension: one gathers and is cut again.
  static_assert(steps_between<both, placed<shard<1, axis::expert>, shard<0, axis::tensor>>>.size() == 3);
  static_assert(steps_between<twice, replicate>[0].over == axis::tensor);  // the inner cut first
  static_assert(steps_between<replicate, twice>[0].over == axis::data);    // and the outer one first
}

TEST_CASE("the maximum of integers and of floats is one whatever the order") {
  static_cast<void>(belay::host::world{3}.run([](belay::host::rank& rank) {
    const mesh_type mesh{rank, {.tensor = 3}};
    std::vector<float> memory{static_cast<float>(rank.number()), static_cast<float>(-rank.number())}, storage;
    tensor<partial<belay::maximum, axis::tensor>> from{mesh, {2}, memory};
    const auto to = belay::redistribute<replicate>(std::move(from));
    CHECK(to.local()[0] == 2);
    CHECK(to.local()[1] == 0);
    return 0;
  }));
}

TEST_CASE("memory that is not the box's, too little storage and a dimension too many are refused") {
  static_cast<void>(belay::host::world{2}.run([](belay::host::rank& rank) {
    const mesh_type mesh{rank, {.tensor = 2}};
    std::vector<float> memory(6), storage(23);
    CHECK_THROWS_WITH_AS((tensor<columns>{mesh, {3, 6}, memory}), doctest::Contains("the memory given has 6"),
                         belay::usage_error);
    CHECK_THROWS_WITH_AS((tensor<columns>{mesh, {6}, memory}), doctest::Contains("of 1 dimensions cannot be cut"),
                         belay::usage_error);
    CHECK_THROWS_AS((tensor<replicate>{mesh, {std::size_t{1} << 40, std::size_t{1} << 40}, memory}), belay::size_error);
    tensor<columns> from{mesh, {3, 4}, memory};
    CHECK(belay::redistribution_elements<replicate>(from) == 24);
    CHECK(belay::redistribution_elements<shard<0, axis::tensor>>(from) == (rank.number() == 0 ? 16 : 12));
    CHECK_THROWS_WITH_AS(static_cast<void>(belay::redistribute<replicate>(std::move(from), std::span(storage))),
                         doctest::Contains("needs storage for 24 elements, was given 23"), belay::usage_error);
    return 0;
  }));
}
