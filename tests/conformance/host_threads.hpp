// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The host backend's threads, as the conformance suites see a backend.
#pragma once

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "conformance/ends.hpp"

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

  template <class Body>
  static ends run_failing(int ranks, Body body) {
    ends out;
    std::vector<char> returned(static_cast<std::size_t>(ranks), 0);  // one byte a thread
    try {
      belay::host::world{ranks, {.timeout = std::chrono::seconds(120)}}.run(
          [&](auto& rank) { returned[static_cast<std::size_t>(rank.number())] = body(rank); });
    } catch (const std::exception& error) {
      out.error = belay::message_of(error);
    } catch (...) {
      out.error = "no std::exception";
    }
    out.returned.assign(returned.begin(), returned.end());
    return out;
  }
};

}  // namespace conformance
