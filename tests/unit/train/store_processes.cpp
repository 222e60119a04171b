// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A store whose ranks are processes.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;

TEST_CASE("ranks that are processes do the same") {
  trained threads;
  belay::launch(belay::host::world{3}, training_body<1>(5, threads));
  std::vector<double> losses;
  const auto body = [&](auto& rank, auto& run) {
    trained out;
    training_body<1>(5, out)(rank, run);
    if (!run.rehearsing()) {
      if (rank.number() == 0 && out.losses != threads.losses) throw belay::error("other losses", belay::where{});
    }
  };
  CHECK_NOTHROW(belay::launch(belay::host::processes{3}, body));
}

TEST_CASE("what a process has thrown is told at the line that launched it") {
  const auto body = [](auto& rank, auto& run) {
    rank.world().barrier();
    if (!run.rehearsing() && rank.number() == 1) throw std::runtime_error("enough");
    rank.world().barrier();
  };
  const int line = __LINE__ + 2;
  try {
    belay::launch(belay::host::processes{2}, body);
    FAIL("it returned");
  } catch (const belay::comm_error& error) {
    CHECK(error.at().line == line);
    CHECK(std::string(error.what()).find("store_processes.cpp:" + std::to_string(line) + ": belay: peer_failed") !=
          std::string::npos);
  }
}
