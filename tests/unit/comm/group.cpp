// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One type of group over several backends: what it tells of them, what it refuses, and what composites may be.
#include "belay/comm/group.hpp"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/comm/symmetric.hpp"
#include "belay/core/error.hpp"

namespace {

using belay::group;
using belay::operation;

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const belay::usage_error& slip) {
    return slip.what();
  }
  return "";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a call is one small value, and its kind says what it is") {
  CHECK(sizeof(belay::op_call) <= 128);
  std::array<float, 3> x{};
  const auto call = belay::op_call::reduce<operation::reduce, belay::average_t, float>(x, x, {"a.cpp", "", 7}, 2);
  CHECK(call.what() == operation::reduce);
  CHECK(call.how() == belay::reduction::average);
  CHECK(call.type() == belay::element_code_of<float>());
  CHECK(call.element_bytes() == 4);
  CHECK(call.in_bytes() == 12);
  CHECK(call.root == 2);
  CHECK(call.uses().reads.size() == 12);
  CHECK(call.print(3) ==
        belay::fingerprint{operation::reduce, belay::reduction::average, belay::element_code_of<float>(), 2, 3, 0});
  struct odd {
    char letters[300];
  };
  std::array<odd, 2> letters{};
  const auto moved = belay::op_call::move<operation::broadcast, odd>(letters, letters, {}, 0);
  CHECK(moved.type() == belay::element_code{belay::element_code::opaque, 300});
  CHECK(moved.out_bytes() == 600);
}

TEST_CASE("what a group promises is asked when the program runs") {
  belay::host::world{2}.run([](belay::host::rank& rank) {
    const group world = rank.world();
    const belay::group_traits& host = world.traits();
    CHECK(!host.rehearsed);
    CHECK(host.sums_in_rank_order);
    CHECK(host.sums_alike);
    CHECK(host.has_varying_counts);
    CHECK(host.starts_local_work);
    CHECK(host.addresses_peers);
    CHECK(!host.mirrors_peers);
    CHECK(!host.on_device);
    CHECK(!host.meets_on_host);
    CHECK(!host.is_captured);
    CHECK(world.device() == nullptr);
    CHECK(&world.control() == &world);
    CHECK(world.size() == 2);
    CHECK(world.rank() == rank.number());
    CHECK(world.members().size() == 2);
    REQUIRE(world.backend<belay::host::group>() != nullptr);
    CHECK(world.backend<belay::host::group>()->size() == 2);
    CHECK(world.backend<belay::rehearsal::group>() == nullptr);
  });
}

TEST_CASE("a rehearsal behind the group: a rank is a question, and nothing that it is given is touched") {
  belay::rehearsal::rank rank(1, 4);
  const group world = rank.world();
  CHECK(world.traits().rehearsed);
  CHECK(world.unasked_rank() == 1);
  CHECK(rank.questions().same(1, 3));  // nobody has asked
  // Addresses without pages, counts that nobody has written.
  const std::span<float> nowhere(reinterpret_cast<float*>(std::uintptr_t{1} << 20), std::size_t{1} << 40);
  const std::span<const std::size_t> unwritten(reinterpret_cast<const std::size_t*>(std::uintptr_t{1} << 20), 4);
  world.all_reduce(nowhere, belay::sum);
  world.all_gather_v(nowhere, unwritten);
  world.start_all_to_all_v(nowhere, unwritten, nowhere, unwritten).wait();
  int ran = 0;
  world.start_composite(operation::barrier, [at = &ran](const belay::group_calls&) { ++*at; }).wait();
  CHECK(ran == 0);
  CHECK(rank.questions().same(1, 3));
  CHECK(world.rank() == 1);
  CHECK(!rank.questions().same(1, 3));
}

TEST_CASE("what makes no sense is refused before anything moves, of a start at the start") {
  belay::host::world{3}.run([](belay::host::rank& rank) {
    const group world = rank.world();
    std::vector<float> in(4, 1.0F), out(11, 7.0F);
    CHECK(contains(refusal([&] { world.all_gather(in, std::span(out)); }),
                   "all_gather: the output holds 11 elements; this call needs 12"));
    CHECK(contains(refusal([&] { world.start_all_gather(in, std::span(out)).wait(); }), "needs 12"));
    CHECK(contains(refusal([&] { world.broadcast(std::span(out), 3); }), "root 3 is no rank of a group of 3"));
    CHECK(contains(refusal([&] {
                     const belay::p2p one = belay::p2p::send(5, std::span<const float>(in));
                     world.start_exchange({&one, 1}).wait();
                   }),
                   "peer 5 is no rank"));
    CHECK(out == std::vector<float>(11, 7.0F));
    world.barrier();  // nobody waits for anybody
  });
}

TEST_CASE("a composite's closure is the group's until it has run, up to its room") {
  belay::host::world{3}.run([](belay::host::rank& rank) {
    const group world = rank.world();
    std::int64_t total = 0;
    std::vector<belay::pending> started;
    for (int round = 0; round < 5; ++round) {
      // 280 bytes and a pointer; it is gone before its turn.
      std::array<std::int64_t, 35> numbers{};
      std::iota(numbers.begin(), numbers.end(), round + rank.number());
      const auto work = [numbers, at = &total](const belay::group_calls& calls) {
        std::int64_t sum = std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
        calls.all_reduce(std::span(&sum, 1), belay::sum);
        *at += sum * calls.size();
        CHECK(&calls.control() == &calls);
      };
      static_assert(sizeof(work) == belay::composite_room);
      started.push_back(world.start_composite(operation::all_reduce, work));
      started.push_back(world.start_local(operation::none, [at = &total] { ++*at; }));
    }
    for (belay::pending& one : started) std::move(one).wait();
    std::int64_t expected = 5;
    for (int round = 0; round < 5; ++round)
      for (int q = 0; q < 3; ++q) expected += 3 * (35 * (round + q) + 34 * 35 / 2);
    CHECK(total == expected);
  });
}

TEST_CASE("copies are the same handle; within changes the limit of one") {
  std::string told;
  try {
    belay::host::world{2, {.timeout = std::chrono::seconds(60)}}.run([](belay::host::rank& rank) {
      const group world = rank.world();
      const group hurried = world.within(std::chrono::milliseconds(50));
      const group copy = world;
      copy.barrier();
      if (rank.number() == 0) hurried.barrier();
      // Rank 1 waits for as long as rank 0 takes to notice: its own limit is the world's.
      int never = 0;
      if (rank.number() == 1) rank.world().receive(0, std::span(&never, 1));
    });
  } catch (const belay::comm_error& error) {
    told = error.what();
  }
  CHECK(!told.empty());
  CHECK_THROWS_AS(belay::host::world{1}.run([](belay::host::rank& rank) {
    static_cast<void>(group(rank.world()).within(std::chrono::seconds(0)));
  }),
                  belay::usage_error);
}

TEST_CASE("memory that all ranks address, of a part of the ranks") {
  belay::host::world{3}.run([](belay::host::rank& rank) {
    const int pair[] = {2, 0};
    const int alone[] = {1};
    const group some = rank.number() == 1 ? rank.group(alone) : rank.group(pair);
    const belay::symmetric_region memory = some.make_symmetric(sizeof(int));
    const auto cell = [&](int q) { return reinterpret_cast<int*>(memory.at(q)); };
    *cell(some.rank()) = 100 + rank.number();
    some.barrier();
    for (int q = 0; q < some.size(); ++q) CHECK(*cell(q) == 100 + some.members()[static_cast<std::size_t>(q)]);
    some.barrier();
  });
}

TEST_CASE("a heap of a group is leased by the rank's run alone, one call at a time") {
  std::vector<std::unique_ptr<belay::symmetric_heap<group>>> heaps(2);
  belay::host::world{2}.run([&](belay::host::rank& rank) {
    const group world = rank.world();
    auto& heap = heaps[static_cast<std::size_t>(rank.number())];
    heap = std::make_unique<belay::symmetric_heap<group>>(world, belay::symmetric_heap_options{.bytes = 4096});
    CHECK(heap->direct());
    const auto slot = heap->lease(64, "row");
    const int peer = 1 - world.rank();
    std::memset(slot.at(peer), world.rank() + 1, 64);
    heap->put(peer, slot, 0, 64);
    heap->synchronize();
    CHECK(std::to_integer<int>(*slot.local()) == peer + 1);
    heap->release(slot);
  });
  if (belay::checked(belay::check_level::local))
    CHECK(contains(refusal([&] { static_cast<void>(heaps[0]->lease(64, "late")); }), "the run of rank 0 is over"));
}
