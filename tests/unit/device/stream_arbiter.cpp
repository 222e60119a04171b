// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/stream_arbiter.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "belay/device/host_stream.hpp"

using belay::host_stream;
using belay::stream_arbiter;
using belay::stream_policy;

namespace {

// The order in which two streams of one rank run three pieces of work each.
std::string order_of(std::uint64_t seed) {
  const auto arbiter = std::make_shared<stream_arbiter>(seed, 1);
  const stream_arbiter::host here(*arbiter);
  host_stream compute({stream_policy::adversarial, arbiter}), copies({stream_policy::adversarial, arbiter});
  std::string order;
  for (int i = 0; i < 3; ++i) {
    compute.run([&order] { order += 'c'; });
    copies.run([&order] { order += 'm'; });
  }
  CHECK(order.empty());  // nothing runs while the host does
  compute.synchronize();
  copies.synchronize();
  return order;
}

// What a compute stream reads of what a copy stream writes, with or without the event between them.
int read_by(std::uint64_t seed, bool waits) {
  const auto arbiter = std::make_shared<stream_arbiter>(seed, 1);
  const stream_arbiter::host here(*arbiter);
  host_stream compute({stream_policy::adversarial, arbiter}), copies({stream_policy::adversarial, arbiter});
  int written = 0, seen = -1;
  copies.run([&written] { written = 7; });
  if (waits) compute.wait(copies.record());
  compute.run([&written, &seen] { seen = written; });
  compute.synchronize();
  copies.synchronize();
  return seen;
}

}  // namespace

TEST_CASE("a seed is an order, and seeds give different ones") {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    orders.insert(order_of(seed));
    CHECK(order_of(seed) == order_of(seed));
  }
  CHECK(orders.size() > 3);
}

TEST_CASE("an event orders two streams under every seed; without it some seed reads too early") {
  bool too_early = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CHECK(read_by(seed, true) == 7);
    too_early = too_early || read_by(seed, false) != 7;
  }
  CHECK(too_early);
}

TEST_CASE("a host that waits lets the streams of others run, and sees what it waits for") {
  const auto arbiter = std::make_shared<stream_arbiter>(5, 3);
  std::vector<int> done(3, 0);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const stream_arbiter::host here(*arbiter);
      host_stream compute({stream_policy::adversarial, arbiter}, rank);
      int* const mine = &done[static_cast<std::size_t>(rank)];
      for (int i = 0; i < 300; ++i) compute.run([mine] { ++*mine; });  // more than the ring holds
      compute.synchronize();
      CHECK(*mine == 300);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_CASE("work that throws stops its stream, and whoever waits for its event") {
  const auto arbiter = std::make_shared<stream_arbiter>(1, 1);
  const stream_arbiter::host here(*arbiter);
  host_stream first({stream_policy::adversarial, arbiter}), second({stream_policy::adversarial, arbiter});
  int ran = 0;
  first.run([] { throw std::runtime_error("the first"); });
  second.wait(first.record());
  second.run([&ran] { ++ran; });
  CHECK_THROWS_WITH(second.synchronize(), "the first");
  CHECK(ran == 0);
  CHECK_THROWS_WITH(first.synchronize(), "the first");
}

TEST_CASE("where nothing can run any more, it is opened: an event that is never reached is the program's") {
  const auto arbiter = std::make_shared<stream_arbiter>(1, 2);
  // One rank has left, and the other's work runs nevertheless.
  { const stream_arbiter::host gone(*arbiter); }
  const stream_arbiter::host here(*arbiter);
  host_stream compute({stream_policy::adversarial, arbiter}, 1);
  int ran = 0;
  compute.run([&ran] { ++ran; });
  compute.synchronize();
  CHECK(ran == 1);
}
