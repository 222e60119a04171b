// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A store of several parts, each divided in a way of its own.
#include <doctest/doctest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;
using belay::zero;

namespace {

struct listed : linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};
struct two_layers {
  listed first{{{"first.weight", {12, 7}}}}, second{{{"second.weight", {3, 12}}}};
};

struct result {
  std::vector<double> losses;
  std::vector<float> first, second;
  std::size_t held_first = 0, held_second = 0;  // elements that rank 0 keeps between steps
  bool as_planned = false;
};

// `make(run, mesh, net)` makes the store.
template <class Make>
result train(int ranks, int shard_group, Make make) {
  result out;
  belay::launch(belay::host::world{ranks}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size(), .shard_group = shard_group}};
    two_layers net;
    auto store = make(run, mesh, net);
    belay::gathers first{net.first, store}, second{net.second, store};
    belay::adamw optimizer{store};
    const auto mine = belay::even_part(global_micro_batches, static_cast<std::size_t>(rank.size()),
                                       static_cast<std::size_t>(rank.number()));
    for (auto number : run.steps(3)) {
      belay::step step{run.engine(), store};
      step.micro_batches(mine.count);
      for (std::size_t m = 0; m < mine.count; ++m) {
        const data batch(number, mine.first + m);
        const auto scope = step.micro_batch(m);
        auto h = belay::forward(scope, first, belay::constant(batch.inputs()));
        auto y = belay::forward(scope, second, h.out());
        auto [loss, grad] = belay::squared_error(scope, y.out(), batch.targets());
        grad = std::move(y).backward(grad);
        std::move(h).backward(grad);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{global_micro_batches * rows});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](double mean) { out.losses.push_back(mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
    }
    const auto weight = store.read(net.first.weight), other = store.read(net.second.weight);
    if (run.rehearsing() || rank.number() != 0) return;
    out.first.assign(weight.values().begin(), weight.values().end());
    out.second.assign(other.values().begin(), other.values().end());
    net.first.weight.each_held([&](std::size_t, auto values) { out.held_first += values.size(); });
    net.second.weight.each_held([&](std::size_t, auto values) { out.held_second += values.size(); });
    out.as_planned = run.planned().peak_bytes(belay::tier::device) == run.meters()[belay::tier::device].peak_bytes();
  });
  return out;
}

template <int First, int Second>
result train_parts(int ranks, int shard_group = 0) {
  return train(ranks, shard_group, [](auto& run, auto& mesh, two_layers& net) {
    return belay::parameter_store{run, mesh, belay::store_options{.seed = 3, .bucket_bytes = 128},
                                  belay::holds(net.first, zero<First>{}), belay::holds(net.second, zero<Second>{})};
  });
}

void check_alike(const result& expected, const result& got) {
  REQUIRE(got.losses.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(got.losses[i] == doctest::Approx(expected.losses[i]).epsilon(1e-6));
  for (std::size_t i = 0; i < expected.first.size(); ++i)
    CHECK(got.first[i] == doctest::Approx(expected.first[i]).epsilon(1e-5));
  for (std::size_t i = 0; i < expected.second.size(); ++i)
    CHECK(got.second[i] == doctest::Approx(expected.second[i]).epsilon(1e-5));
  CHECK(got.as_planned);
}

}  // namespace

TEST_CASE("parts of every pair of stages train as one rank does, and each is divided as it was said") {
  const result one = train_parts<0, 0>(1);
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    for (const result& got : {train_parts<0, 3>(ranks), train_parts<3, 1>(ranks), train_parts<3, 2>(ranks),
                              train_parts<2, 0>(ranks), train_parts<3, 3>(ranks), train_parts<1, 2>(ranks)})
      check_alike(one, got);
    const result mixed = train_parts<3, 1>(ranks);
    CHECK((mixed.held_first < 12 * 7) == (ranks > 1));
    CHECK(mixed.held_second == 3 * 12);
  }
}

TEST_CASE("where the bits are those of one order of sums, a part's stage changes none") {
  const result second = train_parts<2, 2>(2), both = train_parts<2, 3>(2), third = train_parts<3, 3>(2);
  CHECK(second.losses == both.losses);
  CHECK(second.first == both.first);
  CHECK(second.second == both.second);
  CHECK(second.first == third.first);
}

TEST_CASE("and in shard groups") {
  const result one = train_parts<0, 0>(1);
  check_alike(one, train_parts<3, 1>(6, 2));
  check_alike(one, train_parts<2, 3>(6, 3));
}

TEST_CASE("parts of one store lie in tiers of their own") {
  const result one = train_parts<0, 0>(1);
  for (const int ranks : {1, 2, 3})
    check_alike(one, train(ranks, 0, [](auto& run, const auto& mesh, two_layers& net) {
                  return belay::parameter_store{run, mesh, belay::store_options{.seed = 3, .bucket_bytes = 128},
                                                belay::holds(net.first, zero<3>{}, belay::tier::pinned),
                                                belay::holds(net.second, zero<3>{}, belay::tier::host)};
                }));
}

TEST_CASE("a part of another tier, and one that is held twice, are refused") {
  belay::launch(belay::host::world{1}, [](auto& rank, auto& run) {
    if (run.rehearsing()) return;
    belay::mesh mesh{rank, {.data = 1}};
    two_layers net;
    CHECK_THROWS_WITH_AS(static_cast<void>(belay::holds(net.first, zero<1>{}, belay::tier::pinned)),
                         doctest::Contains("belay::zero<1> has no shards of them"), belay::usage_error);
    CHECK_THROWS_WITH_AS(static_cast<void>(belay::holds(net.first, zero<2>{}, belay::tier::file)),
                         doctest::Contains("belay::zero<2> has no shards of them"), belay::usage_error);
    CHECK_THROWS_AS(
        (belay::parameter_store{run, mesh, belay::holds(net.first, zero<1>{}), belay::holds(net.first, zero<2>{})}),
        belay::usage_error);
  });
}
