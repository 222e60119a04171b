// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Of worlds whose ranks are known by what they told; tests of the host backend have those that all can see.
#include "belay/comm/flight_file.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "belay/comm/flight_recorder.hpp"

namespace {

using belay::operation;

belay::flight_record record(std::uint64_t number) {
  belay::flight_record out;
  out.what = operation::all_reduce;
  out.number = number;
  out.site = "a.cpp:" + std::to_string(number);
  return out;
}
belay::flight_record heard(std::uint64_t number) {
  belay::flight_record out = record(number);
  out.reported = true;
  return out;
}

// Three ranks, of which rank 0 waits in its second all_reduce and tells what it knows.
struct scene {
  scene() {
    for (int k = 0; k < 2; ++k) {
      own->enter(operation::all_reduce, 0, static_cast<std::uint64_t>(k), 8, "a.cpp", k);
      if (k == 0) own->finish();
    }
    own->wait_from(1'000'000);
    world.told_by = 0;
    world.until_us = 3'500'000;
    world.groups = {{0, {0, 1, 2}}};
    world.ranks.resize(3);
    world.ranks[0] = {100, belay::rank_state::running, belay::flight_history(*own), {}};
  }

  std::unique_ptr<belay::flight_recorder<>> own = std::make_unique<belay::flight_recorder<>>();
  belay::flight_snapshot world;
};

}  // namespace

TEST_CASE("a history that was heard has the turns that it has, and no others") {
  const belay::flight_history known({record(7), heard(8)}, 9);
  CHECK(known.count() == 9);
  CHECK(known.first() == 7);
  CHECK(known[6].what == operation::none);
  CHECK(known[7].number == 7);
  CHECK(known[8].reported);
  CHECK(known[9].what == operation::none);
  CHECK(belay::flight_history().last().what == operation::none);
}

TEST_CASE("a rank that is known by its message is neither said to wait in what may be over, nor to have missed it") {
  scene made;
  made.world.ranks[1] = {0, belay::rank_state::unknown, belay::flight_history({heard(0)}, 1), {}};
  made.world.ranks[2] = {0, belay::rank_state::unknown, belay::flight_history({record(1)}, 1), {}};
  const std::vector<belay::open_operation> open = belay::open_operations(made.world);
  REQUIRE(open.size() == 1);
  CHECK(open[0].inside == std::vector<int>{0, 2});
  CHECK(open[0].missing == std::vector<int>{1});
  made.world.cause = belay::abort_cause{belay::comm_fault::timeout, {1}, "late", ""};
  CHECK(belay::verdict(made.world) ==
        "rank 1 never entered all_reduce #1 at a.cpp:1; ranks 0, 2 have waited there for 2.50 s; "
        "rank 1 cannot be seen from here, last seen in all_reduce #0 at a.cpp:0");
}

TEST_CASE("a rank that is stopped inside of an operation is told, and is not said to wait for the others") {
  scene made;
  made.world.groups = {{0, {0, 1}}, {1, {1, 2}}};
  belay::flight_record stuck = record(4);
  stuck.group = 1;
  made.world.ranks[1] = {0, belay::rank_state::running, belay::flight_history({record(0), stuck}, 2), {}};
  stuck.number = 3;
  made.world.ranks[2] = {0, belay::rank_state::stopped, belay::flight_history({stuck}, 1), {}};
  made.world.cause = belay::abort_cause{belay::comm_fault::timeout, {1}, "late", ""};
  const std::string said = belay::verdict(made.world);
  CAPTURE(said);
  CHECK(said.find("rank 2 is stopped, in ") != std::string::npos);
  CHECK(said.find("wait for each other") == std::string::npos);
}
