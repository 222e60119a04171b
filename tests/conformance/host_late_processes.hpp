// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The host backend's processes once more, each rank in turn so late that all others are in their bodies before it
// joins.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "unit/backend/late_joiner.hpp"

namespace conformance {

struct host_late_processes {
  using rank_type = belay::host::rank;

  // By rank: whether the law held on it every time.
  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    return run(ranks, std::chrono::seconds(120), body);
  }
  template <class Body>
  static std::vector<bool> run(int ranks, std::chrono::duration<double> timeout, Body body) {
    std::vector<bool> held(static_cast<std::size_t>(ranks), true);
    for (int late = 0; late < ranks; ++late) {
      const late_joiner last(late, ranks - 1);
      const std::vector<bool> now = belay::host::processes{ranks, {.timeout = timeout}}.run([&](auto& rank) {
        if (rank.number() != late) last.let_join();
        return body(rank);
      });
      for (std::size_t q = 0; q < held.size(); ++q) held[q] = held[q] && now[q];
    }
    return held;
  }
};

}  // namespace conformance
