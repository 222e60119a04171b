// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/mpi/failure/world_status.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

namespace mpi = belay::mpi;
using belay::operation;

belay::flight_record entered(operation what, std::uint32_t group, std::uint64_t number) {
  belay::flight_record out;
  out.what = what;
  out.group = group;
  out.number = number;
  out.site = "a.cpp:" + std::to_string(number);
  return out;
}
belay::flight_record done(belay::flight_record what) {
  what.finished = true;
  return what;
}

}  // namespace

TEST_CASE("nothing is known of a peer that has sent nothing") {
  mpi::peer_history history;
  history.add_entry(5, entered(operation::barrier, 0, 0));
  CHECK(history.of(2).count() == 0);
  CHECK(history.of(7).last().what == operation::none);
  CHECK_FALSE(history.exited(7));
}

TEST_CASE("what a peer entered before its last operation is over; the last one may be") {
  mpi::peer_history history;
  for (std::uint64_t k = 0; k < 3; ++k) history.add_entry(1, entered(operation::all_reduce, 0, k));
  const belay::flight_history known = history.of(1);
  REQUIRE(known.count() == 3);
  CHECK(known[0].finished);
  CHECK_FALSE(known[0].reported);
  CHECK(known[1].text() == "after all_reduce #1 at a.cpp:1");
  CHECK(known.last().reported);
  CHECK(known.last().text() == "last seen in all_reduce #2 at a.cpp:2");
}

TEST_CASE("the last records of a group are kept, however many operations of others the peer has entered since") {
  mpi::peer_history history;
  history.add_entry(1, entered(operation::barrier, 9, 3));
  for (std::uint64_t k = 0; k < 100; ++k) history.add_entry(1, entered(operation::all_reduce, 0, k));
  const belay::flight_history known = history.of(1);
  CHECK(known.count() == 101);
  REQUIRE(known.first() == 101 - mpi::peer_history::kept - 1);
  CHECK(known[known.first()].text() == "after barrier #3 of group 9 at a.cpp:3");
  CHECK(known[known.first() + 1].number == 100 - mpi::peer_history::kept);
  CHECK(known.last().number == 99);
}

TEST_CASE("an exchange is one operation, however many messages it has, and counted on its own") {
  mpi::peer_history history;
  history.add_entry(1, entered(operation::all_reduce, 0, 0));
  for (int message = 0; message < 3; ++message) history.add_entry(1, entered(operation::exchange, 0, 0));
  history.add_entry(1, entered(operation::all_reduce, 0, 1));
  history.add_entry(1, entered(operation::exchange, 0, 0));  // a late one
  const belay::flight_history known = history.of(1);
  REQUIRE(known.count() == 3);
  CHECK(known[1].what == operation::exchange);
  CHECK(known.last().text() == "last seen in all_reduce #1 at a.cpp:1");
}

TEST_CASE("a peer's own report holds until it enters another operation") {
  mpi::peer_history history;
  history.add_entry(1, entered(operation::all_reduce, 0, 0));
  history.add_report(1, done(entered(operation::all_reduce, 0, 0)), mpi::peer_history::reporter::running);
  CHECK(history.of(1).last().text() == "after all_reduce #0 at a.cpp:0");
  CHECK_FALSE(history.exited(1));
  history.add_entry(1, entered(operation::all_reduce, 0, 1));
  CHECK(history.of(1).last().text() == "last seen in all_reduce #1 at a.cpp:1");
  // Of a group that this rank is not in.
  history.add_report(1, entered(operation::barrier, 4, 0), mpi::peer_history::reporter::exited);
  CHECK(history.exited(1));
  CHECK(history.groups_with(1) == std::vector<std::uint32_t>{0});
  CHECK(history.groups_with(6).empty());
  REQUIRE(history.of(1).count() == 3);
  CHECK(history.of(1)[1].finished);
  CHECK(history.of(1).last().text() == "in barrier #0 of group 4 at a.cpp:0");
}
