// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/mesh.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/rehearsal.hpp"

namespace {

constexpr belay::axes shape{.pipeline = 2, .data = 3, .expert = 2, .tensor = 2};
static_assert(belay::rank_at(shape, {.pipeline = 1, .data = 2, .expert = 0, .tensor = 1}) ==
              ((1 * 3 + 2) * 2 + 0) * 2 + 1);
static_assert(belay::coordinate_of(shape, 21) == belay::coordinate{1, 2, 0, 1});

std::vector<int> members(const belay::group& group) {
  return {group.members().begin(), group.members().end()};
}

// Writes down which groups a mesh makes.
struct counting_rank {
  using group_type = belay::rehearsal::group;

  [[nodiscard]] int number() const { return rank.number(); }
  [[nodiscard]] static constexpr std::uint64_t abandoned() { return 0; }
  [[nodiscard]] int size() const { return rank.size(); }
  [[nodiscard]] group_type world() const { return rank.world(); }
  [[nodiscard]] group_type group(std::span<const int> members, belay::where at) {
    made.emplace_back(members.begin(), members.end());
    return rank.group(members, at);
  }

  belay::rehearsal::rank rank;
  std::vector<std::vector<int>> made;
};

std::string slip_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const belay::usage_error& error) {
    return error.what();
  }
  return "none";
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

TEST_CASE("shard groups cut the data axis, and with expert what is divided of dense parameters") {
  const belay::axes grid{.data = 4, .expert = 2, .shard_group = 2};
  CHECK(grid.text() == "pipeline 1 x data 4 x expert 2 x tensor 1, shard groups of 2");
  belay::rehearsal::rank rank{5, 8};  // data 2, expert 1
  const belay::mesh mesh{rank, grid};
  CHECK(members(mesh.shards()) == std::vector<int>{5, 7});
  CHECK(members(mesh.dense_shards()) == std::vector<int>{4, 5, 6, 7});
  CHECK(members(mesh.shard_replicas()) == std::vector<int>{1, 5});
  const belay::mesh whole{rank, {.data = 4, .expert = 2}};
  CHECK(members(whole.shards()) == members(whole.data()));
  CHECK(members(whole.dense_shards()) == members(whole.replicas()));
  CHECK(members(whole.shard_replicas()) == std::vector<int>{5});
  CHECK_THROWS_WITH_AS((belay::mesh{rank, {.data = 4, .expert = 2, .shard_group = 3}}),
                       doctest::Contains("shard groups of 3 ranks do not divide data"), belay::usage_error);
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

TEST_CASE("a mesh makes no group before it is asked for one, and equal sets of ranks share one") {
  const auto made_by = [](belay::axes grid, int number) {
    counting_rank rank{{number, static_cast<int>(grid.ranks())}, {}};
    const belay::mesh mesh{rank, grid};
    static_cast<void>(mesh.world());
    static_cast<void>(mesh.control());
    CHECK(rank.made.empty());
    for (int twice = 0; twice < 2; ++twice) {
      for (belay::axis which : belay::all_axes) static_cast<void>(mesh.group(which));
      const belay::mesh copy = mesh;
      static_cast<void>(copy.data());
    }
    return rank.made;
  };
  using ranks = std::vector<std::vector<int>>;
  CHECK(made_by({}, 0).empty());
  CHECK(made_by({.data = 3}, 1) == ranks{{1}, {0, 1, 2}});  // beside the world: votes are no part of its order
  CHECK(made_by({.pipeline = 2, .data = 3}, 4) == ranks{{1, 4}, {3, 4, 5}, {4}});  // data and replica are one
  CHECK(made_by({.data = 2, .expert = 2}, 3) == ranks{{3}, {1, 3}, {2, 3}, {0, 1, 2, 3}});
}

TEST_CASE("what a rehearsal has asked for is made with the mesh, in the order of the axes") {
  constexpr belay::axes grid{.pipeline = 2, .data = 2, .expert = 2};
  const auto body = [&](auto& rank) {
    const belay::mesh mesh{rank, grid};
    const belay::axis_set at_first = mesh.asked();
    static_cast<void>(mesh.replicas());
    static_cast<void>(mesh.pipeline());
    return at_first;
  };
  belay::rehearsal::rank asked{5, 8};
  belay::rank rehearsed{asked};
  CHECK(body(rehearsed).empty());
  CHECK(rehearsed.meshes().asked(grid) == belay::axis_set{belay::axis::pipeline, belay::axis::replica});
  CHECK(rehearsed.meshes().asked({.data = 8}).empty());

  const auto at_first = belay::host::world{8}.run([&](belay::host::rank& self) {
    belay::rank rank{self};
    rank.meshes().add(rehearsed.meshes());
    return body(rank);
  });
  for (belay::axis_set each : at_first) CHECK(each == rehearsed.meshes().asked(grid));

  counting_rank rank{{5, 8}, {}};
  const belay::mesh mesh{rank, grid, rehearsed.meshes().asked(grid)};
  CHECK(rank.made == std::vector<std::vector<int>>{{1, 5}, {4, 5, 6, 7}});
}

TEST_CASE("ranks that ask for a mesh's groups in different orders are told so, all of them") {
  if constexpr (!belay::checked(belay::check_level::across_ranks)) return;
  const auto slips = belay::host::world{4}.run([&](belay::host::rank& rank) {
    const belay::mesh mesh{rank, {.pipeline = 2, .data = 2}};
    return slip_of(
        [&] { static_cast<void>(mesh.group(rank.number() == 2 ? belay::axis::pipeline : belay::axis::data)); });
  });
  for (const std::string& slip : slips) {
    CHECK(slip.find("rank 0 for data now, rank 2 for pipeline") != std::string::npos);
  }
}

TEST_CASE("control is the world's group where buffers are the host's") {
  const auto sums = belay::host::world{3}.run([](belay::host::rank& rank) {
    const belay::mesh mesh{rank, {.data = 3}};
    int one = 1;
    mesh.control().all_reduce(std::span(&one, 1), belay::sum);
    return one;
  });
  CHECK(sums == std::vector<int>{3, 3, 3});
}

TEST_CASE("a group of one takes nothing of the world") {
  // The directory of groups has 1024 places.
  const auto counts = belay::host::world{2}.run([](belay::host::rank& rank) {
    const int alone[] = {rank.number()};
    std::vector<belay::host::group> groups;
    for (int i = 0; i < 3000; ++i) groups.push_back(rank.group(alone));
    int total = 0;
    for (const auto& group : groups) {
      int one = 1;
      group.all_reduce(std::span(&one, 1), belay::sum);
      total += one + (group.members()[0] == rank.number() && group.size() == 1 ? 0 : 1);
    }
    belay::symmetric_region memory = groups[0].make_symmetric(100);
    memory.at(0)[99] = std::byte{1};
    return total;
  });
  CHECK(counts == std::vector<int>{3000, 3000});
}
