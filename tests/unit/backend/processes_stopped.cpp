// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Forked ranks that are stopped where no peer waits for them, or slow or killed while they say why they end; and what
// is known of what one threw.
#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/comm.hpp"
#include "belay/train/plan.hpp"
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
  CHECK(ends[0].how == rank_outcome::outcome_kind::returned);
  CHECK(ends[1].how == rank_outcome::outcome_kind::signalled);
  CHECK(ends[1].code == SIGKILL);
}

TEST_CASE(
    "a rank that is slow to say why is waited for as long as it lives, thread or process, and a killed one is not") {
  using belay::process_state;
  using belay::host::may_still_write;
  for (const process_state alive : {process_state::running, process_state::stopped, process_state::unknown}) {
    CHECK(may_still_write(alive, 0s, 20s));
    CHECK(may_still_write(alive, 19s, 20s));
    CHECK_FALSE(may_still_write(alive, 20s, 20s));
  }
  CHECK_FALSE(may_still_write(process_state::gone, 0s, 20s));

  const belay::host::control_shape shape{.ranks = 2, .space = belay::host::address_space::several};
  for (const bool killed : {false, true}) {
    const auto memory = belay::host::memory_segment::create("cause", belay::host::control_block::bytes_for(shape));
    belay::host::world_status world(belay::host::control_block::make(memory.data(), shape));
    const signal_pipe writes, go_on;
    const pid_t writer = forked([&] {
      const auto write = [&] {
        writes.tell();
        if (killed) ::raise(SIGKILL);
        go_on.wait();
        world.shared().header().cause.message.set("its words");
      };
      world.shared().header().abort.abort(static_cast<std::uint32_t>(::getpid()), write, [] {});
      return 0;
    });
    writes.wait();
    if (killed) {
      siginfo_t ended = {};
      REQUIRE(::waitid(P_PID, static_cast<id_t>(writer), &ended, WEXITED | WNOWAIT) == 0);
      CHECK(world.original_cause().message == "the rank that stopped the world ended before it could say why");
    } else {
      go_on.tell();
      CHECK(world.original_cause().message == "its words");
    }
    CHECK(reaped(writer) == (killed ? 1000 + SIGKILL : 0));
  }
}

TEST_CASE("of what kind an exception was is known to the peers of the rank that threw it, and to its parent") {
  using belay::error_kind;
  const auto thrown = [](error_kind kind) {
    switch (kind) {
      case error_kind::usage: throw belay::usage_error("words", {});
      case error_kind::input: throw belay::input_error("words");
      case error_kind::budget: throw belay::budget_error("host", 2, 1, {});
      case error_kind::file: throw belay::file_error("/a/file", 0, "words");
      case error_kind::plan: throw belay::plan_refused("table", {}, {});
      case error_kind::backend: throw belay::backend_error({"allocate", 1, 2, "words", {}});
      default: throw std::domain_error("words");
    }
  };
  for (const error_kind kind : {error_kind::usage, error_kind::input, error_kind::budget, error_kind::file,
                                error_kind::plan, error_kind::backend, error_kind::other}) {
    CAPTURE(name(kind));
    const auto body = [&](auto& rank) -> int {
      rank.world().barrier();
      if (rank.number() == 1) thrown(kind);
      try {
        while (true) rank.world().barrier();
      } catch (const belay::comm_error& told) {
        return static_cast<int>(told.about().thrown);
      }
    };
    const auto ends = processes{3, soon}.outcomes(body);
    for (const std::size_t q : {0U, 2U}) CHECK(ends[q].result.front() == static_cast<char>(kind));
    CHECK(failure_of(body).thrown == kind);
  }
  CHECK(failure_of([](auto& rank) {
          rank.world().barrier();
          if (rank.number() == 1) ::raise(SIGKILL);
          while (true) rank.world().barrier();
        }).thrown == error_kind::none);
}
