// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank is rehearsed for all that run the body alike, and their plans are those of a rehearsal of each.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;

namespace {

std::string text_of(const belay::rank_plan& plan) {
  std::string out;
  for (const belay::plan_item& item : plan.items())
    out += std::string(belay::name(item.where_it_is)) + " " + item.purpose + " " + std::to_string(item.bytes) + " of " +
           std::to_string(item.capacity) + "\n";
  return out;
}

// The number of ranks rehearsed for `size`, after every plan was compared with a rehearsal of its own rank.
template <class Body>
std::size_t rehearsed(int size, Body body) {
  const belay::rehearsal_result found = belay::rehearse(size, body);
  REQUIRE(found.memory.size() == static_cast<std::size_t>(size));
  for (int number = 0; number < size; ++number) {
    const belay::rank_rehearsal own(number, size, body, 0, belay::where::current());
    const belay::planned_run wanted = own.leased_by(number);
    const auto at = static_cast<std::size_t>(number);
    CHECK(text_of(found.plan.ranks()[at]) == text_of(wanted.plan));
    CHECK(found.memory[at].activations == wanted.memory.activations);
    CHECK(found.memory[at].persistent == wanted.memory.persistent);
    CHECK(found.memory[at].windows == wanted.memory.windows);
  }
  return found.rehearsed;
}

// A store of parameters that no number of ranks divides, and one step.
template <int Stage>
auto trains(belay::axes shape) {
  return [shape](auto& rank, auto& run) {
    belay::mesh mesh{rank, shape};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{}, belay::store_options{.bucket_bytes = 128}};
    belay::adamw optimizer{store};
    const data batch(0, 0);
    belay::step step{run.engine(), store};
    pass(step, net, batch);
    auto outcome = std::move(step).commit(mesh, belay::samples{1});
    if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {});
  };
}

}  // namespace

TEST_CASE("ranks that are not asked who they are have one rehearsal, and their own shards") {
  for (int ranks : {1, 2, 3, 5, 64}) {
    INFO(ranks << " ranks");
    CHECK(rehearsed(ranks, trains<0>({.data = ranks})) == 1);
    CHECK(rehearsed(ranks, trains<1>({.data = ranks})) == 1);
  }
  CHECK(rehearsed(6, trains<1>({.data = 3, .expert = 2})) == 1);
}

TEST_CASE("a body that asks for a number or a place is rehearsed for every answer") {
  const auto leases = [](auto which) {
    return [which](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.pipeline = 2, .data = 3, .expert = 2}};
      static_cast<void>(run.template lease<float>(belay::tier::host, 1 + std::size_t{100} * which(rank, mesh), "mine"));
    };
  };
  const auto size = [](int number) { return static_cast<std::size_t>(number); };
  CHECK(rehearsed(12, leases([&](auto&, auto&) { return size(3); })) == 1);
  CHECK(rehearsed(12, leases([&](auto& rank, auto&) { return size(rank.number()); })) == 12);
  CHECK(rehearsed(12, leases([&](auto&, auto& mesh) { return size(mesh.coordinate().data); })) == 3);
  CHECK(rehearsed(12, leases([&](auto&, auto& mesh) { return size(mesh.coordinate().pipeline); })) == 2);
  CHECK(rehearsed(12, leases([&](auto&, auto& mesh) { return size(mesh.pipeline().rank()); })) == 2);
  CHECK(rehearsed(12, leases([&](auto&, auto& mesh) { return size(mesh.replicas().rank()); })) == 6);
  CHECK(rehearsed(12, leases([&](auto&, auto& mesh) { return size(mesh.tensor().rank()); })) == 1);
  CHECK(rehearsed(12, leases([&](auto&, auto& mesh) { return size(mesh.world().rank()); })) == 12);
  CHECK(rehearsed(12, leases([&](auto&, auto& mesh) { return size(mesh.control().rank()); })) == 12);
}

TEST_CASE("ranks with other numbers of micro-batches have plans of their own") {
  trained out;
  CHECK(rehearsed(4, training_body<1>(1, out)) == 4);
}

TEST_CASE("a plan travels as words") {
  belay::rank_plan plan;
  plan.add(belay::tier::device, "activations", 12345, 23456);
  plan.add(belay::tier::host, "", 0);
  const std::vector<std::uint64_t> words = belay::words_of(plan);
  CHECK(text_of(belay::plan_of(words)) == text_of(plan));
}

TEST_CASE("what one rank's replay needs and has no budget for is refused by all, with the table of all") {
  for (int ranks : {1, 2, 3}) {
    int refused = 0;
    std::mutex lock;
    const auto body = [&](auto& rank, auto& run) {
      // The last rank needs more room than the others, and more than its budget.
      const bool last = rank.number() == rank.size() - 1;
      try {
        belay::mesh mesh{rank, {.data = rank.size()}};
        network net;
        belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
        belay::adamw optimizer{store};
        for ([[maybe_unused]] auto number : run.steps(1)) {
          belay::step step{run.engine(), store};
          if (last && run.engine().room() > 0) {
            belay::lease_chain more;
            static_cast<void>(run.engine().activations().template lease<float>(
                belay::extents<1>{static_cast<std::size_t>(run.engine().room())}, more));
          }
          pass(step, net, data(0, 0));
          if (!run.rehearsing()) step.observe({.needed_rows = 100'000});
          auto outcome = std::move(step).commit(mesh, belay::samples{1});
          if (auto* ok = belay::committed(outcome)) std::move(*ok).discard();
        }
      } catch (const belay::plan_refused& refusal) {
        CHECK(refusal.shortage().rank == rank.size() - 1);
        CHECK(refusal.shortage().needed_bytes > 400'000);
        const std::lock_guard guard(lock);
        ++refused;
      }
    };
    belay::launch_options options;
    options.budget[belay::tier::device] = 300'000;
    belay::launch(belay::host::world{ranks}, body, options);
    CHECK(refused == ranks);
  }
}

TEST_CASE("ranks that do not fit the machine together are refused, with how many would") {
  belay::launch_options options;
  const belay::rehearsal_result planned = belay::rehearse(3, trains<0>({.data = 3}));
  options.available = 2 * belay::memory_of(planned.plan.ranks()[0]).saturated() + 1;
  try {
    belay::launch(belay::host::world{3}, trains<0>({.data = 3}), options);
    FAIL("three ranks in the memory of two");
  } catch (const belay::plan_refused& refusal) {
    const std::string text = refusal.what();
    INFO(text);
    CHECK(text.find("the 3 ranks of this machine need") != std::string::npos);
    CHECK(text.find("room for 2 of such ranks") != std::string::npos);
  }
}

TEST_CASE("an optimizer of one's own, with memory for what its rank owns, is rehearsed for every shard") {
  const auto own = [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 3}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}, belay::store_options{.bucket_bytes = 128}};
    belay::step step{run.engine(), store};
    pass(step, net, data(0, 0));
    auto outcome = std::move(step).commit(mesh, belay::samples{1});
    auto* ok = belay::committed(outcome);
    std::size_t owned = 0;
    for (const auto& range : ok->gradients()) owned += range.count;
    static_cast<void>(run.template lease<float>(belay::tier::device, owned, "my own state"));
    std::move(*ok).discard();
  };
  CHECK(rehearsed(3, own) == 3);
}

TEST_CASE("an optimizer that is made after a step has run is rehearsed for every shard") {
  const auto late = [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 3}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}, belay::store_options{.bucket_bytes = 128}};
    {
      belay::step step{run.engine(), store};
      pass(step, net, data(0, 0));
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      std::move(*belay::committed(outcome)).discard();
    }
    belay::adamw optimizer{store};
  };
  CHECK(rehearsed(3, late) == 3);
}

// The rehearsal has one step, which was without the state; every later step of the run has both.
TEST_CASE("memory that an optimizer leases after the first step is planned beside all that a step has") {
  const auto body = [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 2}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    std::optional<belay::adamw<float, typename decltype(store)::group_type, typename decltype(store)::kit_type>> late;
    for (const auto number : run.steps(3)) {
      belay::step step{run.engine(), store};
      pass(step, net, data(number, static_cast<std::size_t>(rank.number())));
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      if (!late) late.emplace(store);
      late->apply(std::move(*belay::committed(outcome)), {.learning_rate = 1e-3});
    }
    if (!run.rehearsing())
      CHECK(run.planned().peak_bytes(belay::tier::device) == run.meters()[belay::tier::device].peak_bytes());
  };
  belay::launch(belay::host::world{2}, body);
}
