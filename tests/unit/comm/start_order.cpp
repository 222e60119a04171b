// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/start_order.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/device/host_stream.hpp"
#include "belay/device/stream_watch.hpp"
#include "test_length.hpp"

using namespace std::chrono_literals;
using belay::after;
using belay::host_stream;
using belay::stream_policy;

TEST_CASE("a communication begins after an event, and a stream goes on after it, while the host waits for neither") {
  for (int ranks : {1, 2, 3}) {
    std::atomic<bool> released{false};
    std::barrier<> all_are_here(ranks);
    belay::host::world(ranks).run([&](belay::host::rank& rank) {
      host_stream compute({stream_policy::queued}, rank.number());
      std::array<float, 5> values{};
      float sum = 0;
      compute.run([&released] { released.wait(false); });
      compute.run([&values] { values.fill(2); });
      belay::pending under_way =
          rank.world().start_all_reduce(std::span<float>(values), belay::sum, after(compute.record()));
      CHECK(!under_way.ready());
      std::move(under_way).then(compute);
      compute.run([&values, &sum] { sum = values[4]; });
      CHECK(!compute.record().ready());  // the host is here first
      all_are_here.arrive_and_wait();
      released = true;
      released.notify_all();
      compute.synchronize();
      CHECK(sum == 2.0F * static_cast<float>(ranks));
    });
  }
}

TEST_CASE("a composite is host work and operations of its group as one, in the order of what was started") {
  for (int ranks : {1, 3}) {
    belay::host::world(ranks).run([&](belay::host::rank& rank) {
      std::array<int, 3> counts{};
      int total = 0;
      const auto count = [&counts, &total, mine = rank.number()](const auto& group) {
        counts[0] = mine + 1;
        group.all_reduce(std::span<int>(counts).first(1), belay::sum);
        group.barrier();
        total = 10 * counts[0] + group.size();
      };
      rank.world().start_composite(belay::operation::all_reduce, count).wait();
      CHECK(total == 10 * (ranks * (ranks + 1) / 2) + ranks);
    });
  }
}

TEST_CASE("host work of one rank alone runs in the order of what it has started, and needs no peer") {
  for (int ranks : {1, 3}) {
    belay::host::world(ranks).run([&](belay::host::rank& rank) {
      std::array<float, 2> values{1, 2};
      float seen = 0;
      rank.world().start_all_reduce(std::span<float>(values), belay::sum).in_start_order();
      const auto look = [&values, &seen] { seen = values[0]; };
      for (int more = 0; more < rank.number(); ++more)  // other ranks do so less often
        rank.world().start_local(belay::operation::all_gather_v, look).wait();
      CHECK(seen == (rank.number() == 0 ? 0.0F : static_cast<float>(ranks)));
      rank.world().barrier();
      CHECK(values[1] == 2.0F * static_cast<float>(ranks));
    });
  }
}

TEST_CASE("host work that is started once the world has failed is skipped, and the cause is told") {
  bool ran = false;
  const auto late = [&] {
    belay::host::world(2).run([&](belay::host::rank& rank) {
      if (rank.number() == 1) throw std::runtime_error("rank 1 has had enough");
      CHECK_THROWS_AS(rank.world().barrier(), belay::comm_error);
      CHECK_THROWS_AS(rank.world().start_local(belay::operation::all_gather_v, [&ran] { ran = true; }).wait(),
                      belay::comm_error);
    });
  };
  CHECK_THROWS_WITH_AS(late(), "rank 1 has had enough", std::runtime_error);
  CHECK(!ran);
}

TEST_CASE("an event that fails ends the communication for all ranks, with its cause") {
  const auto fail = [] {
    belay::host::world(2).run([&](belay::host::rank& rank) {
      host_stream compute({stream_policy::queued}, rank.number());
      std::array<float, 2> values{};
      if (rank.number() == 1) compute.run([] { throw std::runtime_error("the kernel of rank 1"); });
      belay::pending sum = rank.world().start_all_reduce(std::span<float>(values), belay::sum, after(compute.record()));
      host_stream later({stream_policy::queued}, rank.number());
      std::move(sum).then(later);
      int ran = 0;
      later.run([&ran] { ++ran; });
      try {
        later.synchronize();
      } catch (const belay::comm_error& problem) {
        CHECK(ran == 0);
        CHECK(problem.fault() == belay::comm_fault::peer_failed);
        CHECK(problem.about().culprits == std::vector<int>{1});
        CHECK(std::string(problem.what()).find("the kernel of rank 1") != std::string::npos);
        throw;
      }
      FAIL("nobody noticed");
    });
  };
  CHECK_THROWS_AS(fail(), belay::comm_error);
}

TEST_CASE("an event that is not reached in time is a timeout, which names the rank and the line") {
  std::atomic<bool> released{false};
  const auto wait = [&] {
    belay::host::world(2).run([&](belay::host::rank& rank) {
      host_stream compute({stream_policy::queued}, rank.number());
      std::array<float, 2> values{};
      if (rank.number() == 0) compute.run([&released] { released.wait(false); });
      const auto group = rank.world().within(std::chrono::milliseconds(50));
      try {
        group.start_all_reduce(std::span<float>(values), belay::sum, after(compute.record())).wait();
      } catch (const belay::comm_error& problem) {
        released = true;
        released.notify_all();
        CHECK(problem.fault() == belay::comm_fault::timeout);
        throw;
      }
    });
  };
  CHECK_THROWS_AS(wait(), belay::comm_error);
}

namespace {

// Each host waits for kernels of rank 0 that end when the world has failed: behind an event, in another stream, or in
// the way of more.
enum class stuck { kernel, event, other_stream, ring };

belay::comm_error::details failure_of_stuck(stuck which, int ranks) {
  std::atomic<bool> released{false};
  try {
    belay::host::world(ranks, {.timeout = 50ms}).run([&](belay::host::rank& rank) {
      const belay::stream_settings how{stream_policy::queued, nullptr, rank.watch()};
      host_stream compute(how, rank.number()), copies(how, rank.number(), belay::stream_kind::copy);
      try {
        if (rank.number() == 0) {
          host_stream& first = which == stuck::other_stream ? copies : compute;
          first.run([&released] { released.wait(false); });
          if (which == stuck::other_stream) compute.wait(copies.record());
          if (which == stuck::event) compute.record().synchronize();
          for (std::size_t i = 0; which == stuck::ring && i <= belay::queue_stream::capacity; ++i) compute.run([] {});
          compute.synchronize();
        }
        rank.world().within(60s).barrier();
      } catch (const belay::comm_error&) {
        released = true;
        released.notify_all();
        throw;
      }
    });
  } catch (const belay::comm_error& problem) {
    return problem.about();
  }
  return {};
}

}  // namespace

TEST_CASE("a kernel that does not end is a timeout of its rank, whoever waits for it, and says which kernel it is") {
  for (int ranks : {1, 3}) {
    for (const stuck which : {stuck::kernel, stuck::event, stuck::other_stream, stuck::ring}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(which));
      const auto what = failure_of_stuck(which, ranks);
      CAPTURE(what.message);
      CHECK(what.fault == belay::comm_fault::timeout);
      CHECK(what.culprits == std::vector<int>{0});
      const bool of_copies = which == stuck::other_stream;
      CHECK(what.message.find(of_copies ? "rank 0's compute stream waits for its copy stream, which runs '"
                                        : "rank 0 waits for its compute stream, which runs '") == 0);
      const auto has = [&](const char* text) { return what.message.find(text) != std::string::npos; };
      CHECK((has("failure_of_stuck") || has("start_order.cpp:")));  // g++ names the function, Clang the line
      if (which != stuck::ring) CHECK(what.there.find("start_order.cpp:") != std::string::npos);
    }
  }
}

TEST_CASE("a host that waits for a kernel is told that a peer has failed") {
  std::atomic<bool> released{false};
  const auto fail = [&] {
    belay::host::world(2, {.timeout = 600s}).run([&](belay::host::rank& rank) {
      host_stream compute({stream_policy::queued, nullptr, rank.watch()}, rank.number());
      if (rank.number() == 1) throw std::runtime_error("rank 1 has had enough");
      compute.run([&released] { released.wait(false); });
      try {
        compute.synchronize();
        FAIL("nobody noticed");
      } catch (const belay::comm_error& problem) {
        released = true;
        released.notify_all();
        CHECK(problem.fault() == belay::comm_fault::peer_failed);
        CHECK(problem.about().culprits == std::vector<int>{1});
      }
    });
  };
  CHECK_THROWS_WITH_AS(fail(), "rank 1 has had enough", std::runtime_error);
}

TEST_CASE("a process whose kernel never ends says so, and ends; its peers are told which it was" *
          doctest::skip(threads_are_sanitized)) {
  using belay::host::rank_outcome;
  const auto begun = std::chrono::steady_clock::now();
  const auto ends = belay::host::processes{3, {.timeout = 100ms}}.outcomes([](belay::host::rank& rank) -> std::string {
    host_stream compute({stream_policy::queued, nullptr, rank.watch()}, rank.number());
    try {
      if (rank.number() == 0) {
        ::signal(SIGABRT, SIG_DFL);
        compute.run([] {
          for (;;) ::pause();
        });
        compute.synchronize();
      }
      rank.world().within(60s).barrier();
    } catch (const belay::comm_error& problem) {
      const auto& what = problem.about();
      const bool named = what.fault == belay::comm_fault::timeout && what.culprits == std::vector<int>{0} &&
                         what.message.find("rank 0 waits for its compute stream") == 0;
      return named ? "." : problem.what();
    }
    return "nobody noticed";
  });
  CHECK(ends[0].how == rank_outcome::outcome_kind::signalled);
  CHECK(ends[0].code == SIGABRT);  // its memory cannot be freed
  CHECK(ends[1].result == ".");
  CHECK(ends[2].result == ".");
  CHECK(std::chrono::steady_clock::now() - begun < 30s);
}
