// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Forked ranks that are stopped where no peer waits for them.
#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "belay/backend/host/processes.hpp"
#include "belay/comm.hpp"
#include "unit/backend/forked.hpp"

using belay::host::processes;
using belay::host::rank_outcome;
using namespace std::chrono_literals;

namespace {

const belay::host::world_options soon{.timeout = 60s, .stall_limit = 200ms};

// What `run` throws.
template <class Body>
belay::comm_error::details failure_of(Body body) {
  try {
    processes{3, soon}.run(body);
  } catch (const belay::comm_error& error) {
    return error.about();
  }
  return {};
}

void expect_rank_1(const belay::comm_error::details& what, const std::string& words) {
  CAPTURE(what.message);
  CHECK(what.fault == belay::comm_fault::peer_failed);
  CHECK(what.culprits == std::vector<int>{1});
  CHECK(what.message.find(words) != std::string::npos);
  CHECK_FALSE(has_children());
}

}  // namespace

TEST_CASE("a forked rank that is stopped before it joins is named") {
  // Called in each child of this program by fork itself.
  static int forks_until_stop = -1;
  static const int registered = ::pthread_atfork([] { --forks_until_stop; }, nullptr,
                                                 [] {
                                                   if (forks_until_stop == 0) ::raise(SIGSTOP);
                                                 });
  REQUIRE(registered == 0);
  forks_until_stop = 2;
  expect_rank_1(failure_of([](auto& rank) { rank.world().barrier(); }),
                "rank 1 has been stopped for 0.2 s, and has not joined");
}

TEST_CASE("one that is stopped in its body while the others have returned is named, with its last call") {
  expect_rank_1(failure_of([](auto& rank) {
                  rank.world().barrier();
                  if (rank.number() == 1) ::raise(SIGSTOP);
                }),
                "rank 1 (stopped, after barrier #0 at ");
}

TEST_CASE("one that is stopped after its goodbye is named; what all bodies returned is still told") {
  const auto body = [](auto& rank) {
    if (rank.number() == 1) {
      // Written out at the very end of the process.
      cookie_io_functions_t stops = {};
      stops.write = [](void*, const char*, std::size_t size) {
        ::raise(SIGSTOP);
        return static_cast<ssize_t>(size);
      };
      std::fputs("x", ::fopencookie(nullptr, "w", stops));
    }
    return rank.number() + 7;
  };
  expect_rank_1(failure_of(body), "rank 1 has been stopped for 0.2 s after its goodbye");
  const auto ends = processes{3, soon}.outcomes(body);
  for (std::size_t q = 0; q < 3; ++q) CHECK(ends[q].result == std::string{static_cast<char>(q + 7), 0, 0, 0});
  CHECK(ends[0].how == rank_outcome::kind::returned);
  CHECK(ends[1].how == rank_outcome::kind::signalled);
  CHECK(ends[1].code == SIGKILL);
}
