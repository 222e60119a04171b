// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A store whose ranks are processes.
#include <doctest/doctest.h>

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
