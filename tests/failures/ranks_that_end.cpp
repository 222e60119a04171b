// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Injected faults: in every operation, at every size of a world, one rank ends in every way there is. Nobody hangs, and
// every survivor names it; whatever the timing, because the culprit ends before, in or after the others' call.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "conformance/communicator_faults.hpp"
#include "conformance/in_flight.hpp"

namespace {

using namespace std::chrono_literals;

enum class fault { kill, segv, abort, exit_0, exit_3, exception, early_return, stop };

void commit(fault which) {
  const auto die_of = [](int number) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  };
  switch (which) {
    case fault::kill: die_of(SIGKILL); break;
    case fault::segv: die_of(SIGSEGV); break;
    case fault::abort: die_of(SIGABRT); break;
    case fault::exit_0: ::_exit(0);
    case fault::exit_3: ::_exit(3);
    case fault::exception: throw std::domain_error("the culprit's own words");
    case fault::stop: ::raise(SIGSTOP); break;
    case fault::early_return: break;
  }
}

// The survivors' report: '.' where one named the culprit, and the same again; else what it said.
std::string report_of(belay::host::rank& rank, int which, int culprit, fault what, int calls_before) {
  const auto& world = rank.world();
  conformance::buffers with(rank.size(), 5);
  if (rank.number() == culprit) {
    for (int k = 0; k < calls_before; ++k) conformance::call(world, which, 5, with);
    commit(what);
    return "";
  }
  const auto first = conformance::failure_of([&] {
    // Its last call may succeed for some and not for others; transfers between others may succeed longer.
    for (int k = 0; k < calls_before + 3; ++k) conformance::call(world, which, 5, with);
    while (true) world.barrier();
  });
  const auto again = conformance::failure_of([&] { world.barrier(); });
  if (what == fault::stop) ::kill(rank.state()->pid_of(culprit), SIGKILL);
  const bool named = first.fault == belay::comm_fault::peer_failed && first.culprits == std::vector<int>{culprit} &&
                     !first.operation.empty() && first.here.line > 0 && again.message == first.message;
  return named ? "." : std::string(name(first.fault)) + ": " + first.message + " | " + again.message;
}

}  // namespace

TEST_CASE("500 injected faults: no hang, and all survivors name the culprit") {
  int injected = 0, unnamed = 0;
  constexpr std::array faults{fault::kill,   fault::segv,      fault::abort,        fault::exit_0,
                              fault::exit_3, fault::exception, fault::early_return, fault::stop};
  for (const fault what : faults) {
    for (int which = 0; which < conformance::operation_count; ++which) {
      for (int ranks : {1, 2, 3, 4, 5, 8}) {
        if (what == fault::stop && (ranks != 3 || which % 3 != 0)) continue;  // each takes the stall limit
        const int culprit = (which + ranks / 2) % ranks, calls_before = which % 3;
        CAPTURE(static_cast<int>(what));
        CAPTURE(which);
        CAPTURE(ranks);
        const belay::host::processes world{ranks, {.timeout = 60s, .stall_limit = 200ms}};
        const auto ends = world.outcomes(
            [&](belay::host::rank& rank) { return report_of(rank, which, culprit, what, calls_before); });
        ++injected;
        for (int q = 0; q < ranks; ++q) {
          const auto& end = ends[static_cast<std::size_t>(q)];
          // One that was not ready when the culprit ended is told before its first call.
          const bool early = end.what.find(", rank " + std::to_string(culprit) + ": ") != std::string::npos;
          const bool ok = q == culprit || end.result == "." || early;
          unnamed += !ok;
          CHECK_MESSAGE(ok, end.text() << " " << end.result);
        }
      }
    }
  }
  std::printf("%d faults injected, %d survivors that did not name the culprit\n", injected, unnamed);
  CHECK(injected >= 500);
}

TEST_CASE("and with work in flight: the streams of all survivors end with the culprit's name") {
  constexpr std::array faults{fault::kill,   fault::segv,      fault::abort,        fault::exit_0,
                              fault::exit_3, fault::exception, fault::early_return, fault::stop};
  for (const fault what : faults) {
    for (int which = 0; which < conformance::started_count; ++which) {
      for (int ranks : {2, 3, 5}) {
        if (what == fault::stop && (ranks != 3 || which % 4 != 0)) continue;
        if ((which == 5 || which == 6) && ranks != 3) continue;  // as those that need all ranks, and a barrier
        const int culprit = (which + ranks / 2) % ranks;
        CAPTURE(static_cast<int>(what));
        CAPTURE(which);
        CAPTURE(ranks);
        const belay::host::processes world{ranks, {.timeout = 60s, .stall_limit = 200ms}};
        const auto ends = world.outcomes([&](belay::host::rank& rank) -> std::string {
          conformance::work_in_flight work(rank);
          work.queue(rank.world(), which, 2);
          if (rank.number() == culprit) {
            commit(what);
            return "";
          }
          work.queue_to_the_end(rank.world(), which);
          const auto queued = work.failure();
          if (what == fault::stop) ::kill(rank.state()->pid_of(culprit), SIGKILL);
          const bool named = queued.fault == belay::comm_fault::peer_failed && conformance::names(queued, culprit);
          return named ? "." : std::string(name(queued.fault)) + ": " + queued.message;
        });
        for (int q = 0; q < ranks; ++q) {
          const auto& end = ends[static_cast<std::size_t>(q)];
          const bool early = end.what.find(", rank " + std::to_string(culprit) + ": ") != std::string::npos;
          const bool ok = q == culprit || end.result == "." || early;
          CHECK_MESSAGE(ok, end.text() << " " << end.result);
        }
      }
    }
  }
}

TEST_CASE("a death is seen by all survivors at once, which is printed") {
  constexpr int ranks = 4, kills = 100;
  std::vector<double> milliseconds;
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  for (int k = 0; k < kills; ++k) {
    const auto ends = belay::host::processes{ranks, {.timeout = 60s}}.outcomes([&](belay::host::rank& rank) {
      belay::symmetric_heap heap{rank.world(), {.bytes = 4096}};
      const auto slot = heap.lease(sizeof(std::int64_t), "time of death");
      auto& died_at = *reinterpret_cast<std::atomic<std::int64_t>*>(slot.at(1));
      rank.world().barrier();
      if (rank.number() == 1) {
        died_at = now();
        ::raise(SIGKILL);
      }
      (void)conformance::failure_of([&] {
        while (true) rank.world().barrier();
      });
      return static_cast<double>(now() - died_at) * 1e-6;
    });
    for (int q : {0, 2, 3}) {
      const auto& end = ends[static_cast<std::size_t>(q)];
      REQUIRE(end.how == belay::host::rank_outcome::outcome_kind::returned);
      double one = 0;
      std::memcpy(&one, end.result.data(), sizeof one);
      milliseconds.push_back(one);
    }
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const auto quantile = [&](double q) {
    return milliseconds[static_cast<std::size_t>(q * static_cast<double>(milliseconds.size() - 1))];
  };
  std::printf("%d kills among %d ranks: seen after %.2f ms (median), %.2f ms (p99)\n", kills, ranks, quantile(0.5),
              quantile(0.99));
}
