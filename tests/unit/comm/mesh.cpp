// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/mesh.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/rehearsal.hpp"

namespace {

constexpr belay::axes shape{.pipeline = 2, .data = 3, .expert = 2, .tensor = 2};
static_assert(belay::rank_at(shape, {.pipeline = 1, .data = 2, .expert = 0, .tensor = 1}) ==
              ((1 * 3 + 2) * 2 + 0) * 2 + 1);
static_assert(belay::coordinate_of(shape, 21) == belay::coordinate{1, 2, 0, 1});

std::vector<int> members(const belay::rehearsal::group& group) {
  return {group.members().begin(), group.members().end()};
}

}  // namespace

TEST_CASE("rank and coordinate are inverse of each other") {
  for (int rank = 0; rank < shape.ranks(); ++rank)
    CHECK(belay::rank_at(shape, belay::coordinate_of(shape, rank)) == rank);
}

TEST_CASE("a mesh's groups hold the ranks that differ along their axis only") {
  belay::rehearsal::rank rank{13, 24};  // pipeline 1, data 0, expert 0, tensor 1
  const belay::mesh mesh{rank, {.pipeline = 2, .data = 3, .expert = 2, .tensor = 2}};
  CHECK(mesh.coordinate() == belay::coordinate{1, 0, 0, 1});
  CHECK(members(mesh.pipeline()) == std::vector<int>{1, 13});
  CHECK(members(mesh.data()) == std::vector<int>{13, 17, 21});
  CHECK(members(mesh.expert()) == std::vector<int>{13, 15});
  CHECK(members(mesh.tensor()) == std::vector<int>{12, 13});
  CHECK(members(mesh.replicas()) == std::vector<int>{13, 15, 17, 19, 21, 23});
  CHECK(mesh.world().size() == 24);
  CHECK(mesh.pipeline().rank() == 1);
}

TEST_CASE("an axis that is not named has one rank") {
  belay::rehearsal::rank rank{3, 4};
  const belay::mesh mesh{rank, {.pipeline = 2, .expert = 2}};
  CHECK(mesh.shape() == belay::axes{2, 1, 2, 1});
  CHECK(members(mesh.replicas()) == std::vector<int>{2, 3});
  CHECK(mesh.data().size() == 1);
}

TEST_CASE("a mesh that does not fill the world is refused with the numbers") {
  belay::rehearsal::rank rank{0, 6};
  CHECK_THROWS_WITH_AS((belay::mesh{rank, {.pipeline = 2, .expert = 2}}),
                       doctest::Contains("pipeline 2 x data 1 x expert 2 x tensor 1 needs 4 ranks; this world has 6"),
                       belay::usage_error);
  CHECK_THROWS_AS((belay::mesh{rank, {.pipeline = -2, .data = -3}}), belay::usage_error);
}

TEST_CASE("the groups of all ranks meet, also where two axes hold the same ranks") {
  for (const belay::axes grid : {belay::axes{}, belay::axes{.data = 3}, belay::axes{.pipeline = 2, .expert = 2},
                                 belay::axes{.pipeline = 2, .data = 2, .expert = 2}}) {
    const auto sums = belay::host::world{static_cast<int>(grid.ranks())}.run([&](auto& rank) {
      const belay::mesh mesh{rank, grid};
      int code = 0;
      for (const auto& group :
           {mesh.world(), mesh.pipeline(), mesh.data(), mesh.expert(), mesh.tensor(), mesh.replicas()}) {
        int one = 1;
        group.all_reduce(std::span(&one, 1), belay::sum);
        code = code * 10 + one;
      }
      return code;
    });
    const int expected =
        ((((static_cast<int>(grid.ranks()) * 10 + grid.pipeline) * 10 + grid.data) * 10 + grid.expert) * 10 +
         grid.tensor) *
            10 +
        grid.data * grid.expert;
    for (int code : sums) CHECK(code == expected);
  }
}

TEST_CASE("axes that wrap round are more ranks than any world has") {
  belay::rehearsal::rank rank{0, 1};
  CHECK(belay::axes{1 << 16, 1 << 16, 1 << 16, 1 << 16}.ranks() > 1LL << 62);
  CHECK(belay::axes{1 << 30, 1 << 30, 1 << 30, 3}.ranks() > 1LL << 62);
  CHECK_THROWS_AS((belay::mesh{rank, {.pipeline = 1 << 16, .data = 1 << 16, .expert = 1 << 16, .tensor = 1 << 16}}),
                  belay::usage_error);
}
