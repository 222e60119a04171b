// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks that share a device start in the order of its streams, over a device of the host: whatever order its
// streams take, and with any wait between ranks left out.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "belay/kernel/elementwise.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/cuda/forgetful_api.hpp"
#include "unit/backend/hand_clock.hpp"

using fakes::forgetful_api, fakes::forgets, fakes::work_order;

namespace {

constexpr std::size_t count = 700;  // more than a slot has

struct counted_up {
  float *x, from;
  BELAY_HD void operator()(std::size_t i) const { x[i] = from + static_cast<float>(i % 7); }
};
struct doubled {
  float* x;
  BELAY_HD void operator()(std::size_t i) const { x[i] *= 2; }
};
// Queued beside a group's operations.
struct add_then_sum {
  float *x, *y;
  void operator()(const auto& calls) const {
    calls.each(count, belay::kernel::axpy<float>{1, x, y});
    calls.all_reduce(std::span<float>(y, count), belay::sum);
  }
};

// What rank `number` of `ranks` has in the end. In every step a kernel makes numbers, which are summed after it, and
// sent around; a kernel uses both, and makes the next ones in the same memory. That outlives the world's run, and the
// transfers are kept: where a rank fails, its communication thread may still queue what it has started.
constexpr std::size_t memory_bytes = 6 * count * sizeof(float);
template <class Rank, class Memory>
std::vector<float> steps(Rank& rank, const Memory& memory) {
  const auto& world = rank.world();
  belay::cuda::kit kit(rank.gpu(), rank.watch());
  auto& compute = kit.stream();
  const belay::cuda::pinned_memory result(rank.gpu(), memory_bytes);
  const auto at = [&](std::size_t k) { return std::span(reinterpret_cast<float*>(memory.data()) + k * count, count); };
  const std::size_t ranks = static_cast<std::size_t>(world.size());
  const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
  kit.each(6 * count, belay::kernel::fill<float>{at(0).data(), 0});
  for (int step = 0; step < 3; ++step) {
    kit.each(count, counted_up{at(0).data(), static_cast<float>(world.rank() + 3 * step)});
    kit.each(count, belay::kernel::axpy<float>{0.5F, at(4).data(), at(0).data()});
    const auto made = compute.record();
    const auto ring = std::make_shared<const std::array<belay::p2p, 2>>(std::array<belay::p2p, 2>{
        belay::p2p::send(next, std::span<const float>(at(0))), belay::p2p::receive(previous, at(1))});
    belay::pending sent = world.start_exchange(*ring, belay::start_order(belay::after(made)).keeping(ring));
    belay::pending summed = world.start_all_reduce(at(0), belay::sum, belay::after(made));
    std::move(sent).then(compute);
    kit.each(count, doubled{at(1).data()});
    belay::pending mixed = world.start_composite(belay::operation::all_reduce, add_then_sum{at(1).data(), at(2).data()},
                                                 belay::after(compute.record()));
    const std::size_t part = count / ranks;
    belay::pending gathered =
        world.start_all_gather(at(2).first(part), at(3).first(part * ranks));  // after what it reads, as it was started
    std::move(summed).then(compute);
    std::move(mixed).then(compute);
    std::move(gathered).then(compute);
    kit.each(count, belay::kernel::axpy<float>{0.25F, at(0).data(), at(4).data()});
    kit.each(count, belay::kernel::axpy<float>{0.125F, at(3).data(), at(4).data()});
    kit.each(count, belay::kernel::fill<float>{at(1).data(), -1});
  }
  compute.copy(result.data(), memory.data(), result.size_bytes());
  compute.synchronize();
  const auto* const first = reinterpret_cast<const float*>(result.data());
  return {first, first + 6 * count};
}

template <class Api>
std::vector<std::vector<float>> run(Api& api, int ranks) {
  const belay::cuda::world world(api, belay::host::world(ranks), {.slot_bytes = 1024, .groups = 2});
  std::vector<belay::cuda::device_memory<Api>> memory;
  for (int q = 0; q < ranks; ++q) memory.emplace_back(world.gpu(q), memory_bytes);
  return world.run([&](auto& rank) { return steps(rank, memory[static_cast<std::size_t>(rank.number())]); });
}

}  // namespace

TEST_CASE("what ranks of a device start comes after what it should, in every order of the streams") {
  for (const int ranks : {1, 2, 3}) {
    fakes::device_api eager({work_order::eager});
    const auto expected = run(eager, ranks);
    CHECK(eager.empty());
    CHECK(expected[0][4 * count + 5] > 0);
    std::vector<fakes::device_options> orders{{work_order::late}};
    for (std::uint64_t seed = 0; seed < 8; ++seed) orders.push_back({work_order::random, seed});
    for (const auto& how : orders) {
      fakes::device_api api(how);
      CHECK(run(api, ranks) == expected);
      CHECK(api.empty());
    }
  }
}

TEST_CASE("waits that a device leaves out are seen, within a rank and between ranks") {
  fakes::device_api eager({work_order::eager});
  const auto expected = run(eager, 2);
  const auto differs = [&](forgets what, std::uint64_t which = 0) {
    forgetful_api api({work_order::late}, what, which);
    return run(api, 2) != expected;
  };
  CHECK(!differs(forgets::nothing));
  CHECK(differs(forgets::own));
  CHECK(differs(forgets::peers));
  forgetful_api complete({work_order::late}, forgets::nothing);
  static_cast<void>(run(complete, 2));
  std::size_t seen = 0;  // of single ones: many are for what another one waits for too
  for (std::uint64_t k = 1; k <= complete.waits(); ++k) seen += differs(forgets::one, k) ? 1U : 0U;
  CHECK(seen > complete.waits() / 10);
}

TEST_CASE("how long a transfer waits for its partner is by the clock of the ranks' world") {
  using namespace std::chrono_literals;
  hand_clock clock;
  const auto begun = std::chrono::steady_clock::now();
  fakes::device_api api({work_order::eager});
  const belay::cuda::world world(api, belay::host::world(2, {.timeout = 600s, .clock = &clock}),
                                 {.slot_bytes = 1024, .groups = 1});
  const belay::cuda::device_memory<fakes::device_api> memory(world.gpu(0), memory_bytes);
  world.run([&](auto& rank) {
    if (rank.number() == 1) {
      while (!rank.watch()->failed()) std::this_thread::sleep_for(1ms);
      return;
    }
    const moving_on fast(clock);
    const std::span<const float> sent(reinterpret_cast<const float*>(memory.data()), 4);
    const belay::p2p to_peer[] = {belay::p2p::send(1, sent)};
    CHECK_THROWS_WITH_AS(rank.world().exchange(to_peer), doctest::Contains("rank 1 did not come to the exchange"),
                         belay::comm_error);
  });
  CHECK(std::chrono::steady_clock::now() - begun < 60s);
}

TEST_CASE("ranks share one allocation for what they communicate, which is said to be too small by name") {
  fakes::device_api api({work_order::late});
  const belay::cuda::world world(api, belay::host::world(2), {.slot_bytes = 1024, .groups = 1});
  CHECK(std::count(api.calls().begin(), api.calls().end(), "allocate") == 1);
  CHECK_THROWS_AS(world.run([](auto& rank) {
    const int both[] = {0, 1};
    static_cast<void>(rank.group(both));  // beside its world
  }),
                  belay::budget_error);
  CHECK_THROWS_AS(belay::cuda::world(api, belay::host::world(2), {.slot_bytes = 100}), belay::usage_error);
  fakes::device_api small({.memory = 4096});
  CHECK_THROWS_AS(belay::cuda::world(small, belay::host::world(2), {.slot_bytes = 1024, .groups = 2}),
                  belay::backend_error);
}

TEST_CASE("a call of the device that fails in a rank ends all ranks with its name") {
  fakes::device_api all({work_order::late});
  static_cast<void>(run(all, 2));
  const std::set<std::string> names(all.calls().begin(), all.calls().end());
  for (const std::string& name : names) {
    if (name.starts_with("destroy")) continue;  // prints a line, and ends what it should
    CAPTURE(name);
    std::size_t k = all.calls().size();  // one in the middle of the run: where exactly, the threads decide
    while (all.calls()[k - 1] != name) --k;
    k = k > all.calls().size() * 3 / 4 ? all.calls().size() / 2 : k;
    fakes::device_api api({work_order::late, 0, k});
    try {
      static_cast<void>(run(api, 2));
    } catch (const belay::backend_error& problem) {
      CHECK(problem.about().message == "injected");
    } catch (const belay::comm_error& problem) {
      CHECK(std::string(problem.what()).find("injected") != std::string::npos);
    }
    CHECK(api.empty());
  }
}
