// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/report/trace.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

nlohmann::json written(const belay::trace& trace) {
  const std::string path = "/tmp/belay_trace_" + std::to_string(::getpid());
  trace.write(path);
  std::ifstream in(path);
  auto read = nlohmann::json::parse(in);
  ::unlink(path.c_str());
  return read;
}

}  // namespace

TEST_CASE("ranks record at the same time and the file is a Chrome trace") {
  belay::trace trace(3, 100);
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&trace, rank] {
      for (std::uint64_t i = 0; i < 10; ++i) belay::trace::duration(trace, rank, "forward", "step", i);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  trace.add(1, {"wait \"quoted\"", "pipeline", 1500, 4000});
  trace.add(3, {"nobody", "", 0, 0});
  const auto read = written(trace);
  const auto& events = read["traceEvents"];
  REQUIRE(events.size() == 3 + 30 + 1);
  std::size_t durations = 0;
  for (const auto& event : events) {
    CHECK(event["pid"] == 0);
    CHECK(event["tid"] < 3);
    if (event["ph"] == "M") continue;
    CHECK(event["ph"] == "X");
    CHECK(event["ts"].is_number());
    CHECK(event["dur"] >= 0);
    ++durations;
    if (event["name"] == "forward") {
      CHECK(event["args"]["number"] < 10);
    } else {
      CHECK(event["ts"] == 1.5);
      CHECK(event["dur"] == 2.5);
    }
  }
  CHECK(durations == 31);
}

TEST_CASE("a full ring forgets its oldest events and says how many") {
  belay::trace trace(1, 4);
  for (std::uint64_t i = 0; i < 11; ++i) trace.add(0, {"e", "", i, i, i});
  CHECK(trace.recorded(0) == 11);
  CHECK(trace.forgotten(0) == 7);
  const auto events = written(trace)["traceEvents"];
  REQUIRE(events.size() == 5);
  for (std::size_t i = 0; i < 4; ++i) CHECK(events[i + 1]["args"]["number"] == 7 + i);
}

TEST_CASE("a trace without events or ranks is still a file that can be read") {
  CHECK(written(belay::trace(0)).at("traceEvents").empty());
  CHECK(written(belay::trace(1)).at("traceEvents").size() == 1);
}
