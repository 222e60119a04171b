// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/start_order.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <span>
#include <stdexcept>
#include <string>

#include "belay/backend/host.hpp"
#include "belay/device/host_stream.hpp"

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
