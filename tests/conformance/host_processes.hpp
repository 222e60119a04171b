// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The host backend's processes, as the conformance suites see a backend.
#pragma once

#include <chrono>
#include <exception>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "conformance/ends.hpp"

namespace conformance {

struct host_processes {
  using rank_type = belay::host::rank;

  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    return run(ranks, std::chrono::seconds(120), body);
  }
  template <class Body>
  static std::vector<bool> run(int ranks, std::chrono::duration<double> timeout, Body body) {
    return belay::host::processes{ranks, {.timeout = timeout}}.run(body);
  }

  template <class Body>
  static ends run_failing(int ranks, Body body) {
    ends out;
    const auto all = belay::host::processes{ranks, {.timeout = std::chrono::seconds(120)}}.outcomes(body);
    for (const auto& one : all) {
      const bool returned = one.how == belay::host::rank_outcome::outcome_kind::returned;
      out.returned.push_back(returned && !one.result.empty() && one.result.front() != 0);
      if (!returned && out.error.empty()) out.error = one.text();
    }
    return out;
  }
};

}  // namespace conformance
