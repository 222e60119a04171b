// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/flight_recorder.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

TEST_CASE("the recorder keeps the last operations and says which one is open") {
  auto recorder = std::make_unique<belay::flight_recorder<4>>();
  CHECK(recorder->last().text() == "before its first operation");
  for (std::uint64_t k = 0; k < 6; ++k) {
    recorder->enter(belay::operation::all_reduce, 0, k, 8 * k, "train.cpp", 10 + static_cast<int>(k));
    CHECK(recorder->last().text() == "in all_reduce #" + std::to_string(k) + " at train.cpp:" + std::to_string(10 + k));
    recorder->finish();
  }
  CHECK(recorder->last().text() == "after all_reduce #5 at train.cpp:15");
  CHECK((*recorder)[3].bytes == 24);
  CHECK((*recorder)[1].what == belay::operation::none);  // overwritten
  CHECK((*recorder)[6].what == belay::operation::none);  // not yet
}

TEST_CASE("an entry is not taken for one of 65,536 operations later, whose turn looks the same") {
  auto recorder = std::make_unique<belay::flight_recorder<4>>();
  constexpr std::uint64_t later = std::uint64_t{1} << 16;
  for (std::uint64_t k = 0; k <= later; ++k) recorder->enter(belay::operation::barrier, 0, k, 0, "a.cpp", 1);
  CHECK((*recorder)[0].what == belay::operation::none);
  CHECK((*recorder)[later].number == later);
}

TEST_CASE("an operation that sleeps tells since when, and in the end how long it slept") {
  auto recorder = std::make_unique<belay::flight_recorder<4>>();
  recorder->enter(belay::operation::barrier, 0, 0, 0, "a.cpp", 1);
  CHECK(recorder->last().waiting_us == 0);
  recorder->wait_from(123456789);
  CHECK(recorder->last().waiting_us == 123456789);
  CHECK(!recorder->last().finished);
  recorder->finish(42);
  CHECK(recorder->last().waiting_us == 0);
  CHECK(recorder->last().waited_us == 42);
}

TEST_CASE("what a rank does in the other order of operations is told where it does nothing in this one") {
  auto called = std::make_unique<belay::flight_recorder<4>>(), started = std::make_unique<belay::flight_recorder<4>>();
  const auto text = [&] { return belay::text_of(called->last(), started->last(), "started"); };
  CHECK(text() == "before its first operation");
  started->enter(belay::operation::all_reduce, 2, 7, 0, "b.cpp", 2);
  CHECK(text() == "before its first operation, and in started all_reduce #7 of group 2 at b.cpp:2");
  called->enter(belay::operation::barrier, 0, 0, 0, "a.cpp", 1);
  CHECK(text() == "in barrier #0 at a.cpp:1");
  called->finish();
  CHECK(text() == "after barrier #0 at a.cpp:1, and in started all_reduce #7 of group 2 at b.cpp:2");
  started->finish();
  CHECK(text() == "after barrier #0 at a.cpp:1");
}

TEST_CASE("a present call's line is told however many lines have called before") {
  auto recorder = std::make_unique<belay::flight_recorder<4>>();
  const auto call = [&](std::uint64_t k) {
    recorder->enter(belay::operation::barrier, 0, k, 0, "many.cpp", static_cast<int>(k));
  };
  for (std::uint64_t k = 0; k < 2000; ++k) {
    call(k);
    REQUIRE(recorder->last().site == "many.cpp:" + std::to_string(k));
    REQUIRE(recorder->site_text(recorder->last_site()) == "many.cpp:" + std::to_string(k));
    recorder->finish();
  }
  // One text is kept for all lines beyond the table: that of the latest of them.
  CHECK((*recorder)[1999].site == "many.cpp:1999");
  CHECK((*recorder)[1998].site == "a site that was not kept");
  // It stays as long as that line calls, and while a line of the table does.
  call(1999);
  CHECK((*recorder)[1999].site == "many.cpp:1999");
  CHECK((*recorder)[2000].site == "many.cpp:1999");
  call(0);
  CHECK(recorder->last().site == "many.cpp:0");
  CHECK((*recorder)[2000].site == "many.cpp:1999");
}

TEST_CASE("a line of the standard library is said to be one") {
  const auto recorder = std::make_unique<belay::flight_recorder<8>>();
  recorder->enter(belay::operation::barrier, 0, 0, 0, "/usr/include/c++/12/bits/stl_construct.h", 119);
  CHECK(recorder->last().site == "/usr/include/c++/12/bits/stl_construct.h:119 (the standard library)");
}

TEST_CASE("a reader never takes one line's text for another's, nor half of it") {
  auto recorder = std::make_unique<belay::flight_recorder<2>>();
  for (int line = 0; line < 2000; ++line) recorder->enter(belay::operation::barrier, 0, 0, 0, "first.cpp", line);
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (std::uint64_t k = 10000; k < 30000; ++k) {
      recorder->enter(belay::operation::barrier, 0, k, 0, k % 2 == 0 ? "even.cpp" : "a/longer/name/odd.cpp",
                      static_cast<int>(k));
    }
    over = true;
  });
  bool right = true;
  while (!over) {
    const auto seen = recorder->last();
    if (seen.what == belay::operation::none || seen.number < 10000 || seen.site == "a site that was not kept") continue;
    right = right &&
            seen.site == (seen.number % 2 == 0 ? "even.cpp:" : "a/longer/name/odd.cpp:") + std::to_string(seen.number);
  }
  writer.join();
  CHECK(right);
}

TEST_CASE("a reader never sees half of one entry and half of another") {
  auto recorder = std::make_unique<belay::flight_recorder<2>>();
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (std::uint64_t k = 1; k <= 20000; ++k) {
      recorder->enter(belay::operation::barrier, static_cast<std::uint32_t>(k), k, k, "f.cpp",
                      static_cast<int>(k % 100));
      recorder->finish();
    }
    over = true;
  });
  bool whole = true;
  while (!over) {
    const auto seen = recorder->last();
    if (seen.what == belay::operation::none) continue;
    whole = whole && seen.number == seen.bytes && seen.number == seen.group &&
            seen.site == "f.cpp:" + std::to_string(seen.number % 100);
  }
  writer.join();
  CHECK(whole);
}
