// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The host backend's threads, as the conformance suites see a backend.
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"

namespace conformance {

struct host_threads {
  using rank_type = belay::host::rank;

  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    return run(ranks, std::chrono::seconds(120), body);
  }
  template <class Body>
  static std::vector<bool> run(int ranks, std::chrono::duration<double> timeout, Body body) {
    return belay::host::world{ranks, {.timeout = timeout}}.run(body);
  }
};

}  // namespace conformance
