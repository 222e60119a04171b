// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory goes from one stream to another when that has queued a wait for what used it; and where the rule is taken
// away, a seed is found that shows it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "belay/backend/host.hpp"
#include "belay/train.hpp"

using belay::stream_choice;
using belay::stream_policy;

namespace {

// Leases of the engine's arena, and of a symmetric heap of the run.
template <class Arena>
struct arena_leases {
  Arena& memory;
  using held = belay::lease_chain;
  [[nodiscard]] std::span<double> lease(std::size_t count, held& to) {
    return memory.template lease<double>(belay::extents<1>{count}, to).flat();
  }
  [[nodiscard]] std::span<double> lease_for(const belay::stream_event& ready, std::size_t count, held& to) {
    return memory.template lease_for<double>(belay::stream_kind::communication, ready, belay::extents<1>{count}, to)
        .flat();
  }
  void used_until(const belay::stream_event& over, std::span<double> used, const held&) {
    memory.used_until(over, used.data(), used.size_bytes());
  }
  void release(held& ended) { memory.release(ended); }
};
template <class Heap>
struct heap_leases {
  Heap& memory;
  using held = typename Heap::heap_slot;
  [[nodiscard]] std::span<double> lease(std::size_t count, held& to) {
    to = memory.lease(count * sizeof(double), "slot");
    return {reinterpret_cast<double*>(to.local()), count};
  }
  [[nodiscard]] std::span<double> lease_for(const belay::stream_event& ready, std::size_t count, held& to) {
    to = memory.lease_for(belay::stream_kind::communication, ready, count * sizeof(double), "slot");
    return {reinterpret_cast<double*>(to.local()), count};
  }
  void used_until(const belay::stream_event& over, std::span<double>, const held& used) {
    memory.used_until(over, used);
  }
  void release(held& ended) { memory.release(ended); }
};

// Memory goes from the compute stream to a communication, which begins before the last kernel that reads it, and from a
// communication to the compute stream, which does not wait for it.
template <class Rank, class Run, class Leases>
void hand_memory_over(Rank& rank, Run& run, Leases memory, double& found) {
  using held = typename Leases::held;
  constexpr std::size_t count = 100;
  const auto world = rank.world();
  auto& compute = run.engine().compute();
  const auto sum = run.template lease<double>(belay::tier::device, 1, "sum");
  const auto sent = run.template lease<double>(belay::tier::device, count, "sent");
  const auto gathered = run.template lease<double>(belay::tier::device, 2 * count, "gathered");
  const auto fill = [&](double* to, double value) { compute.run([to, value] { std::fill_n(to, count, value); }); };
  const auto add = [&](const double* from, std::size_t elements) {
    compute.run([from, elements, to = sum.data()] { *to += std::accumulate(from, from + elements, 0.0); });
  };
  fill(sent.data(), 7);
  for (int round = 1; round <= 3; ++round) {
    held first, second, third, fourth;
    const auto read = memory.lease(2 * count, first);
    fill(read.data(), round);
    const belay::stream_event early = compute.record();
    add(read.data(), count);
    memory.release(first);
    const auto received = memory.lease_for(early, 2 * count, second);
    belay::pending gather = world.start_all_gather(std::span<const double>(sent), received, belay::after(early));
    memory.used_until(gather.event(), received, second);
    std::move(gather).then(compute);
    add(received.data(), 2 * count);
    memory.release(second);

    const auto given = memory.lease(count, third);
    fill(given.data(), 10 * round);
    belay::pending other =
        world.start_all_gather(std::span<const double>(given), std::span(gathered), belay::after(compute.record()));
    memory.used_until(other.event(), given, third);
    memory.release(third);
    const auto written = memory.lease(count, fourth);
    fill(written.data(), 1000);
    std::move(other).then(compute);
    add(gathered.data(), 2 * count);
    memory.release(fourth);
  }
  compute.synchronize();
  if (!run.rehearsing() && rank.number() == 0) found = sum[0];
}
enum class leased_from { arena, symmetric_heap };
template <class Stream>
double found_after(leased_from where_from, const stream_choice& how) {
  double found = 0;
  const auto body = [&](auto& rank, auto& run) {
    if (where_from == leased_from::arena)
      hand_memory_over(
          rank, run,
          arena_leases<std::remove_reference_t<decltype(run.engine().activations())>>{run.engine().activations()},
          found);
    else
      hand_memory_over(
          rank, run,
          heap_leases<std::remove_reference_t<decltype(run.windows(rank.world()))>>{run.windows(rank.world())}, found);
  };
  belay::launch<belay::host_kit<Stream>>(belay::host::world{2}, body,
                                                                          {.streams = how});
  return found;
}
// 100 read, 200 received and 200 gathered.
constexpr double handed_over = 100 * (1 + 2 + 3) + 3 * 200 * 7 + 200 * 10 * (1 + 2 + 3);

// It says of itself that it comes after everything: a lease may be any range that is free.
struct boastful_stream : belay::host_stream {
  using host_stream::host_stream;
  [[nodiscard]] belay::stream_event record() { return host_stream::record().at(*latest_); }
  [[nodiscard]] const std::shared_ptr<belay::stream_clock>& clock() const noexcept { return latest_; }

 private:
  std::shared_ptr<belay::stream_clock> latest_ = std::make_shared<belay::stream_clock>(belay::stream_clock::unknown());
};

}  // namespace

TEST_CASE("memory goes to another stream when that has queued a wait for what used it") {
  for (const leased_from memory : {leased_from::arena, leased_from::symmetric_heap}) {
    CHECK(found_after<belay::host_stream>(memory, {stream_policy::immediate, 0}) == handed_over);
    CHECK(found_after<belay::host_stream>(memory, {stream_policy::queued, 0}) == handed_over);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      INFO("seed " << seed);
      CHECK(found_after<belay::host_stream>(memory, {stream_policy::adversarial, seed}) == handed_over);
    }
  }
}

TEST_CASE("a wrong policy does not pass: what is free goes to whoever asks") {
  for (const leased_from memory : {leased_from::arena, leased_from::symmetric_heap}) {
    std::optional<std::uint64_t> caught;
    for (std::uint64_t seed = 0; seed < 100 && !caught; ++seed)
      if (found_after<boastful_stream>(memory, {stream_policy::adversarial, seed}) != handed_over) caught = seed;
    REQUIRE(caught);
    const std::string name = memory == leased_from::arena ? "the arena" : "the symmetric heap";
    MESSAGE("without the event before memory of " << name << " goes to another stream: caught by seed " << *caught);
  }
}

TEST_CASE("what was never said to end goes back to the heap when all of it is reclaimed") {
  belay::launch(belay::host::world{1}, [](auto& rank, auto& run) {
    auto& heap = run.windows(rank.world());
    auto& compute = run.engine().compute();
    const auto held = heap.lease_for(belay::stream_kind::copy, compute.record(), 64, "never used");
    const std::size_t offset = held.offset_bytes();
    heap.release(held);
    const auto other = heap.lease(64, "elsewhere");
    if (!run.rehearsing()) CHECK(other.offset_bytes() != offset);
    heap.reclaim();
    CHECK(!other.live());
    CHECK(heap.live_bytes() == 0);
    const auto again = heap.lease(64, "again");
    if (!run.rehearsing()) CHECK(again.offset_bytes() == offset);
    heap.release(again);
  });
}
