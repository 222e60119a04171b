// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks of a launched body say when they fail.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"

namespace network_bench {

// Runs a body of two ranks; returns what each of them threw, or "".
template <class Body>
[[nodiscard]] std::vector<std::string> messages(Body body, int ranks = 2) {
  std::vector<std::string> out(static_cast<std::size_t>(ranks));
  const auto caught = [&](auto& rank, auto& run) {
    if (run.rehearsing()) {
      body(rank, run);
    } else {
      try {
        body(rank, run);
      } catch (const belay::comm_error&) {  // of a peer that threw first
        throw;
      } catch (const std::exception& problem) {
        out[static_cast<std::size_t>(rank.number())] = problem.what();
        throw;
      }
    }
  };
  try {
    belay::launch(belay::host::world{ranks}, caught);
  } catch (const std::exception&) {
  }
  return out;
}

[[nodiscard]] inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace network_bench
