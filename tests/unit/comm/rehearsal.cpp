// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/rehearsal.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "belay/comm/symmetric.hpp"

TEST_CASE("a rehearsal's communication returns at once and touches nothing") {
  const belay::rehearsal::rank rank{5, 1000};
  const auto world = rank.world();
  CHECK(world.rank() == 5);
  CHECK(world.size() == 1000);
  auto* nowhere = reinterpret_cast<float*>(64);  // would fault
  const std::span<float> memory(nowhere, 1000);
  world.barrier();
  world.all_reduce(memory, belay::sum);
  world.broadcast(memory, 0);
  world.all_gather(memory.first(1), memory);
  world.reduce(memory, belay::average, 3);
  world.gather(memory.first(1), memory, 5);
  world.scatter(memory, memory.first(1), 5);
  world.all_to_all(memory, memory);
  world.send(7, memory);
  world.receive(7, memory);
  const belay::p2p transfer = belay::p2p::send(7, memory);
  world.exchange(std::span(&transfer, 1));
  auto started = world.start_all_reduce(memory, belay::sum);
  CHECK(started.ready());
  std::move(started).wait();
  world.start_barrier().wait();
  world.start_reduce(memory, belay::product, 3).wait();
  world.start_gather(memory.first(1), memory, 5).wait();
  world.start_scatter(memory, memory.first(1), 5).wait();
  world.start_all_to_all(memory, memory).wait();
}

TEST_CASE("a rehearsed symmetric heap has the addresses and the extent of a real one") {
  const belay::rehearsal::rank rank{1, 4};
  belay::symmetric_heap heap{rank.world(), {.bytes = std::size_t{1} << 33}};
  const auto a = heap.lease(1000, "a");
  const auto b = heap.lease(std::size_t{1} << 32, "b");
  CHECK(a.local() != a.at(0));
  CHECK(b.at(3) - a.at(3) == 1024);
  CHECK(heap.extent_bytes() == 1024 + (std::size_t{1} << 32));
}

TEST_CASE("a rank outside of its world is refused") {
  CHECK_THROWS_AS((belay::rehearsal::rank{4, 4}), belay::usage_error);
  const belay::rehearsal::rank rank{1, 4};
  const std::vector<int> others{0, 2};
  CHECK_THROWS_AS((void)rank.group(others), belay::usage_error);
}

TEST_CASE("a rehearsal notes what a rank gives its peers in the largest collective of each group") {
  const belay::rehearsal::rank rank{1, 4};
  const std::vector<int> pair{1, 3}, other_pair{0, 2}, neighbours{0, 1}, named{0, 1, 2}, alone{1};
  const auto along = rank.group_along(pair, {.data = 2, .expert = 2}, belay::axis::data);
  const auto three = rank.group(named);
  const std::span<float> memory(reinterpret_cast<float*>(64), 3000);
  rank.world().broadcast(memory.first(10), 0);
  along.all_reduce(memory.first(101), belay::sum);  // in parts of whole packs
  along.start_all_gather(memory.first(50), memory.first(100)).wait();
  three.reduce_scatter(memory.first(9), memory.first(3), belay::sum);
  three
      .start_composite(
          belay::operation::all_to_all_v, [](const auto&) {}, belay::start_order(belay::where::current()).giving(5000))
      .wait();
  rank.group(alone).all_reduce(memory, belay::sum);
  CHECK(rank.sizes().of_world() == 40);
  CHECK(rank.sizes().of(pair) == 2 * 208);
  CHECK(rank.sizes().of(other_pair) == 2 * 208);  // as made along that axis by other ranks
  CHECK(rank.sizes().of(neighbours) == 0);
  CHECK(rank.sizes().of(named) == 5000);
  CHECK(rank.sizes().of(alone) == 0);
  CHECK(rank.sizes().largest_reduced() == 2 * 208);
}
