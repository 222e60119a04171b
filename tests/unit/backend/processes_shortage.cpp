// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Processes that run out, or whose parent runs out, of descriptors: at each step of the start.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstdio>
#include <string>

#include "belay/backend/host/processes.hpp"
#include "belay/comm.hpp"
#include "unit/backend/forked.hpp"

using belay::host::processes;
using namespace std::chrono_literals;

namespace {

enum end : int { ran, named, silent, left_children, left_descriptors };

void allow(rlim_t descriptors) {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = descriptors;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// In a child: runs three ranks under this limit.
end run_with(rlim_t descriptors) {
  return static_cast<end>(reaped(forked([&] {
    const int before = open_descriptors();
    rlimit usual = {};
    ::getrlimit(RLIMIT_NOFILE, &usual);
    allow(descriptors);
    end out = ran;
    std::string said;
    try {
      processes{3, {.timeout = 20s}}.run([](auto& rank) { rank.world().barrier(); });
    } catch (const std::exception& error) {
      said = error.what();
      const std::string limit = "RLIMIT_NOFILE of this process is " + std::to_string(descriptors);
      out = said.find(limit) != std::string::npos ? named : silent;
    }
    allow(usual.rlim_cur);
    if (out == silent) std::fprintf(stderr, "limit %d: %s\n", static_cast<int>(descriptors), said.c_str());
    if (has_children()) return left_children;
    return open_descriptors() == before ? out : left_descriptors;
  })));
}

}  // namespace

TEST_CASE("a limit of descriptors that is met at any step of the start is named, and no process or descriptor stays") {
  int failed = 0;
  for (auto limit = static_cast<rlim_t>(open_descriptors()) - 1;; ++limit, ++failed) {
    CAPTURE(limit);
    const end out = run_with(limit);
    if (out == ran) break;
    REQUIRE(out == named);
  }
  // A socket, a segment, a child and a connection for each rank at least.
  CHECK(failed >= 8);
}
