// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "belay/comm.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"

static_assert(belay::directly_addressable<belay::host::group>);

TEST_CASE("a world gives the bodies' results in rank order and runs again") {
  const belay::host::world world{3};
  for (int round = 0; round < 2; ++round) {
    const auto names = world.run([](auto& rank) { return "rank " + std::to_string(rank.number()); });
    CHECK(names == std::vector<std::string>{"rank 0", "rank 1", "rank 2"});
  }
}

TEST_CASE("a world without ranks or with a senseless deadline is refused") {
  CHECK_THROWS_AS(belay::host::world{0}, belay::usage_error);
  CHECK_THROWS_AS((belay::host::world{1, {.timeout = std::chrono::seconds(-1)}}), belay::usage_error);
  ::setenv("BELAY_TIMEOUT", "soon", 1);
  CHECK_THROWS_WITH_AS(belay::host::world{1}, doctest::Contains("BELAY_TIMEOUT=soon"), belay::input_error);
  ::setenv("BELAY_TIMEOUT", "0.05", 1);
  std::atomic<bool> gave_up{false};
  CHECK_THROWS_AS(belay::host::world{2}.run([&](auto& rank) {
    if (rank.number() == 1) return gave_up.wait(false);
    try {
      rank.world().barrier();
    } catch (const belay::comm_error&) {
      gave_up = true;
      gave_up.notify_all();
      throw;
    }
  }),
                  belay::comm_error);
  ::unsetenv("BELAY_TIMEOUT");
}

TEST_CASE("groups are checked: members of the world, this rank among them, in one order") {
  belay::host::world{1}.run([](auto& rank) {
    CHECK_THROWS_AS((void)rank.group(std::vector<int>{}), belay::usage_error);
    CHECK_THROWS_AS((void)rank.group(std::vector<int>{0, 1}), belay::usage_error);
    CHECK_THROWS_AS((void)rank.group(std::vector<int>{0, 0}), belay::usage_error);
  });
  CHECK_THROWS_AS(belay::host::world{2}.run([](auto& rank) {
    const auto order = rank.number() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0};
    rank.group(order).barrier();
    rank.world().barrier();
  }),
                  belay::error);
}

TEST_CASE("no operation takes from the heap after the first of its kind") {
  for (int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const auto allocations_of = [ranks](const auto& world, auto& heap) {
      const auto size = static_cast<std::size_t>(ranks);
      std::vector<float> in(64 * size, 1.0F), out(64 * size), part(64);
      const std::vector<std::size_t> counts(size, 64);
      const belay::p2p transfers[] = {
          belay::p2p::send((world.rank() + 1) % ranks, std::span<const float>(part)),
          belay::p2p::receive((world.rank() + ranks - 1) % ranks, std::span(out).first(64))};
      const auto settle = [](belay::pending started) { std::move(started).wait(); };
      const auto once = [&] {
        auto slot = heap.lease(1000, "slot");
        world.all_reduce(std::span(in), belay::maximum);
        auto p = world.start_all_reduce(std::span(in), belay::maximum);
        world.reduce_scatter(out, std::span(part), belay::average);
        std::move(p).wait();
        world.reduce_scatter_v(std::span(in), counts, belay::maximum);
        world.reduce(std::span(in), belay::maximum, 0);
        world.all_gather(part, std::span(out));
        world.all_gather_v(std::span(out), counts);
        world.all_to_all(in, std::span(out));
        world.all_to_all(in, std::span(in));
        world.all_to_all_v(in, counts, std::span(out), counts);
        world.all_to_all_v(in, counts, std::span(in), counts);
        world.broadcast(std::span(in), 0);
        world.gather(part, std::span(out), 0);
        world.scatter(out, std::span(part), 0);
        world.exchange(transfers);
        if (ranks > 1 && world.rank() == 0) world.send(1, std::span(part));
        if (world.rank() == 1) world.receive(0, std::span(part));
        settle(world.start_reduce_scatter(in, std::span(part), belay::average));
        settle(world.start_reduce_scatter_v(std::span(in), counts, belay::maximum));
        settle(world.start_reduce(std::span(in), belay::maximum, 0));
        settle(world.start_all_gather(part, std::span(out)));
        settle(world.start_all_gather_v(std::span(out), counts));
        settle(world.start_all_to_all(in, std::span(in)));
        settle(world.start_all_to_all_v(in, counts, std::span(out), counts));
        settle(world.start_broadcast(std::span(in), 0));
        settle(world.start_gather(part, std::span(out), 0));
        settle(world.start_scatter(out, std::span(part), 0));
        settle(world.start_exchange(transfers));
        settle(world.start_barrier());
        settle(world.start_composite(belay::operation::barrier, [](const auto& calls) { calls.barrier(); }));
        settle(world.start_local(belay::operation::none, [] {}));
        heap.release(slot);
        world.barrier();
      };
      once();
      world.barrier();
      const std::uint64_t before = tools::heap_allocations();
      world.barrier();
      for (int k = 0; k < 100; ++k) once();
      world.barrier();
      const std::uint64_t after = tools::heap_allocations();
      world.barrier();
      return after - before;
    };
    const auto grown = belay::host::world{ranks}.run([&](auto& rank) {
      belay::symmetric_heap heap{rank.world(), {.bytes = 1 << 16}};
      const belay::group erased = rank.world();
      return allocations_of(rank.world(), heap) + allocations_of(erased, heap);
    });
    for (std::uint64_t count : grown) CHECK(count == 0);
  }
}

TEST_CASE("a started operation that nobody waits for is counted, and reported by the next call in checked builds") {
  belay::host::world{2}.run([](auto& rank) {
    std::vector<float> x(100, 1.0F);
    {
      std::vector<belay::pending> lost(1);
      lost[0] = rank.world().start_all_reduce(std::span(x), belay::sum);
    }
    CHECK(rank.abandoned() == 1);
    if constexpr (belay::checked(belay::check_level::local)) {
      CHECK_THROWS_WITH_AS(rank.world().barrier(), doctest::Contains("was never waited for"), belay::usage_error);
    }
    rank.world().barrier();  // it says so once
    rank.finish();
  });
}

TEST_CASE("more started operations than the ring holds wait for the oldest") {
  const auto sums = belay::host::world{2}.run([](auto& rank) {
    constexpr std::size_t many = 3 * belay::host::async_stream::capacity;
    std::vector<int> x(many, 1);
    std::vector<belay::pending> started(many);
    for (std::size_t k = 0; k < many; ++k)
      started[k] = rank.world().start_all_reduce(std::span(x).subspan(k, 1), belay::sum);
    int total = 0;
    for (std::size_t k = 0; k < many; ++k) {
      std::move(started[k]).wait();
      total += x[k];
    }
    return total;
  });
  for (int total : sums) CHECK(total == 2 * 3 * static_cast<int>(belay::host::async_stream::capacity));
}

TEST_CASE("ranks may be pinned to cores") {
  const auto ok = belay::host::world{3, {.pin = belay::host::pinning::one_core_each}}.run([](auto& rank) {
    int one = 1;
    rank.world().all_reduce(std::span(&one, 1), belay::sum);
    cpu_set_t cores;
    ::sched_getaffinity(0, sizeof cores, &cores);
    return one == 3 && CPU_COUNT(&cores) == 1;
  });
  for (bool fine : ok) CHECK(fine);
}

TEST_CASE("threads that are left go on in a smaller world; one that comes too late is revoked") {
  using namespace std::chrono_literals;
  std::atomic<bool> knows{false}, late{false};
  std::barrier<> go_on(2);
  std::vector<std::string> told(4);
  const auto body = [&](auto& rank) {
    const auto failure = [&](auto call) -> std::string {
      try {
        call();
      } catch (const belay::comm_error& error) {
        return name(error.fault());
      }
      return "none";
    };
    std::string& mine = told[static_cast<std::size_t>(rank.number())];
    rank.world().barrier();
    if (rank.number() == 1) throw std::domain_error("gone");
    mine = failure([&] {
      while (true) rank.world().barrier();
    });
    if (rank.number() == 3) {
      knows = true;
      knows.notify_all();
      late.wait(false);  // until the others have gone on
      mine += " " + failure([&] { (void)rank.shrink(); }) + " " + failure([&] { rank.world().barrier(); });
      return;
    }
    knows.wait(false);
    go_on.arrive_and_wait();  // they come within the stall limit of each other on a busy machine too
    {
      auto rest = rank.shrink();
      int one = 1;
      rest.world().all_reduce(std::span(&one, 1), belay::sum);
      mine += " " + std::to_string(rest.number()) + "/" + std::to_string(one);
    }
    late = true;
    late.notify_all();
  };
  CHECK_THROWS_AS((belay::host::world{4, {.timeout = 60s, .stall_limit = 2s}}.run(body)), std::domain_error);
  CHECK(told[0] == "peer_failed 0/2");
  CHECK(told[2] == "peer_failed 1/2");
  CHECK(told[3] == "peer_failed revoked revoked");
}

TEST_CASE("a started operation goes on while its rank computes, and is ready without another call") {
  std::atomic<bool> go{false}, done{false};
  const auto ok = belay::host::world{2}.run([&](auto& rank) {
    std::vector<float> x(1000, 1.0F);
    if (rank.number() == 1) go.wait(false);
    auto started = rank.world().start_all_reduce(std::span(x), belay::sum);
    bool good = true;
    if (rank.number() == 0) {
      good = !started.ready();  // the other has not begun
      go = true;
      go.notify_one();
      done.wait(false);  // no call of the library: the other tells by itself that it has its result
      while (!started.ready()) std::this_thread::yield();
    }
    std::move(started).wait();
    if (rank.number() == 1) {
      done = true;
      done.notify_one();
    }
    return good && x[999] == 2.0F;
  });
  CHECK(ok[0]);
  CHECK(ok[1]);
}

TEST_CASE("64 operations of a group are in flight at once and complete in the order of their launch") {
  const auto ok = belay::host::world{3}.run([](auto& rank) {
    std::vector<int> x(64, 1);
    std::vector<belay::pending> started(64);
    for (std::size_t k = 0; k < 64; ++k)
      started[k] = rank.world().start_all_reduce(std::span(x).subspan(k, 1), belay::sum);
    bool ordered = true;
    for (std::size_t k = 64; k-- > 0;) {
      if (!started[k].ready()) continue;
      for (std::size_t j = 0; j < k; ++j) ordered = ordered && started[j].ready();
    }
    for (auto& each : started) std::move(each).wait();
    for (int total : x) ordered = ordered && total == 3;
    return ordered;
  });
  for (bool fine : ok) CHECK(fine);
}

TEST_CASE("in checked builds a call that uses a buffer in flight is told where its operation was started") {
  if constexpr (belay::checked(belay::check_level::local)) {
    const auto ok = belay::host::world{2}.run([](auto& rank) {
      const auto& world = rank.world();
      std::vector<float> x(100, 1.0F), y(100);
      const auto refused = [](auto call) {
        try {
          call();
        } catch (const belay::usage_error& error) {
          return std::string(error.what()).find("is in use by the all_reduce started at") != std::string::npos;
        }
        return false;
      };
      auto started = world.start_all_reduce(std::span(x).first(50), belay::sum);
      bool good = refused([&] { world.all_reduce(std::span(x), belay::sum); });
      good = refused([&] { world.broadcast(std::span(x).subspan(49, 1), 0); }) && good;
      good = refused([&] { world.all_to_all(x, std::span(y)); }) && good;  // reads what is being written
      world.start_broadcast(std::span(x).first(1), 0).wait();              // runs after it
      world.all_reduce(std::span(x).subspan(50), belay::sum);              // beside it
      std::move(started).wait();
      world.broadcast(std::span(x), 0);
      return good;
    });
    for (bool fine : ok) CHECK(fine);
  }
}
