// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One type of rank over backends and rehearsals: its groups, its meshes, and what it hands on.
#include "belay/comm/rank.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/error.hpp"

namespace {

// A body that knows no backend: the sum of the ranks along each axis that is asked for.
std::vector<int> sums_along(belay::rank& rank, belay::axes shape) {
  const belay::mesh mesh(rank, shape);
  std::vector<int> out;
  for (const belay::group* group : {&mesh.world(), &mesh.data(), &mesh.expert(), &mesh.replicas()}) {
    std::array<int, 1> sum{rank.number()};
    belay::all_reduce(*group, sum, belay::sum);
    out.push_back(sum[0]);
  }
  return out;
}

}  // namespace

TEST_CASE("a body of belay::rank runs on ranks of a backend, with their groups and meshes") {
  for (const int ranks : {1, 3, 6}) {
    belay::host::world{ranks}.run([&](belay::host::rank& self) {
      belay::rank rank(self);
      CHECK(rank.number() == self.number());
      CHECK(rank.size() == ranks);
      CHECK(!rank.rehearsed());
      CHECK(&rank.world() == &rank.world());  // one handle
      const int data = ranks == 6 ? 3 : ranks;
      const std::vector<int> got = sums_along(rank, {.data = data, .expert = ranks / data});
      const int all = ranks * (ranks - 1) / 2, experts = ranks / data;
      int along_data = 0;
      for (int place = 0; place < data; ++place) along_data += place * experts + rank.number() % experts;
      int along_expert = 0;
      for (int place = 0; place < experts; ++place) along_expert += rank.number() / experts * experts + place;
      CHECK(got == std::vector<int>{all, along_data, along_expert, all});
      const std::array<int, 1> alone{rank.number()};
      CHECK(rank.group(alone).size() == 1);
      CHECK(rank.abandoned() == 0);
    });
  }
}

TEST_CASE("what a backend alone can do is asked of its rank, where it is one of that backend") {
  belay::host::world{2}.run([](belay::host::rank& self) {
    const belay::rank rank(self);
    REQUIRE(rank.backend<belay::host::rank>() == &self);
    CHECK(rank.backend<belay::host::rank>()->survivors().size() == 2);
    CHECK(rank.backend<belay::rehearsal::rank>() == nullptr);
  });
}

TEST_CASE("a rehearsed rank notes what is asked, and which groups its meshes were asked for") {
  belay::rehearsal::rank asked(5, 12);
  belay::rank rank(asked);
  CHECK(rank.rehearsed());
  CHECK(rank.world().traits().rehearsed);
  CHECK(rank.unasked_rank() == 5);
  const belay::axes shape{.pipeline = 2, .data = 3, .expert = 2};
  const belay::mesh mesh(rank, shape);
  CHECK(asked.questions().same(5, 11));  // nothing yet
  CHECK(mesh.coordinate().data == 2);
  CHECK(asked.questions().same(5, 11));
  CHECK(!asked.questions().same(5, 3));
  CHECK(mesh.pipeline().rank() == 0);
  CHECK(!asked.questions().same(5, 11));
  CHECK(rank.meshes().asked(shape).has(belay::axis::pipeline));
  CHECK(!rank.meshes().asked(shape).has(belay::axis::data));
  CHECK(rank.number() == 5);
  CHECK(!asked.questions().same(5, 4));
}

TEST_CASE("in a run a mesh makes at once what a rehearsal has asked for") {
  belay::host::world{4}.run([](belay::host::rank& self) {
    belay::rank rank(self);
    const belay::axes shape{.data = 2, .expert = 2};
    rank.meshes().add(shape, {belay::axis::expert});
    const belay::mesh mesh(rank, shape);
    CHECK(mesh.asked().has(belay::axis::expert));
    CHECK(!mesh.asked().has(belay::axis::data));
  });
}
