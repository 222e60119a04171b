// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The boxes of a mesh's ranks: together they are the tensor, and every element is written once.
#include "belay/parallel/local_box.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "belay/comm/reduction.hpp"
#include "belay/comm/rehearsal.hpp"

namespace {

using belay::axes;
using belay::axis;
using belay::axis_set;
using belay::placed;
using belay::shard;

using of_experts = shard<0, axis::expert>;
using columns = shard<1, axis::tensor>;
using both = placed<of_experts, columns>;
using one_dimension = placed<shard<0, axis::tensor>, of_experts>;
using three = placed<shard<2, axis::data>, of_experts, columns>;

const std::vector<axes> meshes{{},
                               {.expert = 3},
                               {.expert = 2, .tensor = 3},
                               {.data = 2, .expert = 3, .tensor = 2},
                               {.pipeline = 2, .data = 4, .expert = 2, .tensor = 2, .shard_group = 2},
                               {.data = 3, .expert = 1, .tensor = 4, .shard_group = 1}};
const std::vector<std::vector<std::size_t>> shapes{{5, 3, 2}, {1, 4, 4}, {0, 2, 2}, {2, 1, 7}, {6, 0, 3}};

// Every rank of a stage holds its box; along the directions that cut nothing they hold the same.
template <class Placement>
void check_cover(const axes& mesh, const std::vector<std::size_t>& shape) {
  const belay::tensor_box whole = belay::whole_box(shape);
  constexpr axis_set cut = belay::cut_directions<Placement>();
  std::vector<std::size_t> held(whole.elements()), written(whole.elements()), in_turn(whole.elements());
  const int ranks = static_cast<int>(mesh.ranks()) / mesh.pipeline;  // of stage 0
  for (int rank = 0; rank < ranks; ++rank) {
    const belay::coordinate here = belay::coordinate_of(mesh, rank);
    const belay::tensor_box mine = belay::local_box<Placement>(shape, mesh, here);
    REQUIRE(belay::lies_in(mine, whole));
    const belay::copy_place copies = belay::copies_of(mesh, here, cut, belay::kept_part::local_part);
    const belay::local_part part = copies.written(mine.elements(), belay::copy_place::divided_from, 5);
    const belay::local_part turn = copies.written(mine.elements(), 0, 5);
    belay::each_common_run(mine, whole, [&](std::size_t in_mine, std::size_t in_whole, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        const auto is_in = [&](belay::local_part range) {
          return in_mine + i >= range.first && in_mine + i < range.first + range.count;
        };
        held[in_whole + i] += 1;
        written[in_whole + i] += is_in(part) ? 1 : 0;
        in_turn[in_whole + i] += is_in(turn) ? 1 : 0;
      }
    });
  }
  const belay::coordinate first;
  const std::size_t copies = belay::copies_of(mesh, first, cut, belay::kept_part::local_part).count;
  CHECK(held == std::vector<std::size_t>(held.size(), copies));
  CHECK(written == std::vector<std::size_t>(written.size(), 1));
  CHECK(in_turn == std::vector<std::size_t>(in_turn.size(), 1));
}

}  // namespace

TEST_CASE("the boxes of all ranks are the tensor, as often as ranks hold the same, and each element is written once") {
  for (const axes& mesh : meshes) {
    INFO(mesh.text());
    for (const auto& shape : shapes) {
      check_cover<belay::replicate>(mesh, shape);
      check_cover<of_experts>(mesh, shape);
      check_cover<both>(mesh, shape);
      check_cover<one_dimension>(mesh, shape);
      check_cover<three>(mesh, shape);
    }
    check_cover<three>(mesh, {7, 9, 8});
  }
}

TEST_CASE("the second axis that cuts a dimension cuts each part of the first") {
  const axes mesh{.expert = 2, .tensor = 3};
  const std::vector<std::size_t> shape{7, 2};
  std::vector<std::size_t> firsts;
  for (int tensor = 0; tensor < 3; ++tensor)
    for (int expert = 0; expert < 2; ++expert) {
      const belay::tensor_box box = belay::local_box<one_dimension>(shape, mesh, {.expert = expert, .tensor = tensor});
      firsts.push_back(box.sides[0].first);
      CHECK(box.sides[1] == belay::box_side{0, 2});
    }
  CHECK(firsts == std::vector<std::size_t>{0, 2, 3, 4, 5, 6});  // 3 + 2 + 2 rows, each cut in two
}

TEST_CASE("a rank's number along an axis is that of its group") {
  for (const axes& mesh : meshes)
    for (int rank = 0; rank < mesh.ranks(); ++rank)
      for (const axis which : belay::all_axes) {
        const belay::coordinate here = belay::coordinate_of(mesh, rank);
        const std::vector<int> group = belay::ranks_along(mesh, here, which);
        const belay::axis_place place = belay::place_along(mesh, here, which);
        REQUIRE(place.count == static_cast<int>(group.size()));
        CHECK(group[static_cast<std::size_t>(place.number)] == rank);
      }
}

TEST_CASE("what ZeRO has divided is the same across shard groups, and along tensor where that does not cut") {
  const axes mesh{.data = 4, .expert = 2, .tensor = 3, .shard_group = 2};
  const belay::coordinate here{.data = 2, .expert = 1, .tensor = 2};
  using belay::kept_part;
  CHECK(belay::copies_of(mesh, here, {}, kept_part::local_part) == belay::copy_place{17, 24});
  CHECK(belay::copies_of(mesh, here, {}, kept_part::shard) == belay::copy_place{5, 6});
  CHECK(belay::copies_of(mesh, here, {axis::expert}, kept_part::local_part) == belay::copy_place{8, 12});
  CHECK(belay::copies_of(mesh, here, {axis::expert, axis::tensor}, kept_part::local_part) == belay::copy_place{2, 4});
  CHECK(belay::copies_of(mesh, here, {axis::expert, axis::tensor}, kept_part::shard) == belay::copy_place{1, 2});
}

TEST_CASE("gradients are reduced over the ranks with other samples that hold the same part") {
  static_assert(belay::reduced_over({}) == axis::replica && belay::divided_over({}) == axis::dense_shard);
  static_assert(belay::reduced_over(belay::cut_directions<of_experts>()) == axis::data);
  static_assert(belay::reduced_over(belay::cut_directions<columns>()) == axis::replica);
  static_assert(belay::divided_over(belay::cut_directions<both>()) == axis::shard);
}

TEST_CASE("a rehearsed rank is asked for the numbers along the axes that cut") {
  const auto alike = [](auto placement, int other) {
    belay::rehearsal::rank rank(0, 8);
    belay::mesh mesh{rank, {.data = 2, .expert = 2, .tensor = 2}};
    static_cast<void>(belay::local_box<decltype(placement)>(std::vector<std::size_t>{4, 4}, mesh));
    return rank.questions().same(0, other);
  };
  CHECK(alike(belay::replicate{}, 7));
  CHECK(alike(of_experts{}, 1));
  CHECK_FALSE(alike(of_experts{}, 2));
  CHECK_FALSE(alike(both{}, 1));
  CHECK(alike(both{}, 4));
  CHECK_FALSE(alike(shard<0>{}, 4));
}
