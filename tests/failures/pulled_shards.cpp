// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Shards that are read by address while their owner updates them: a step then computes with parameters of which some
// are a step old, and nothing says so. Between an update and the next gather there is one barrier of the communication
// streams; without it late streams change the numbers. See docs/explanation/sharding.md, "Gathers by address".
#include "failures/support/pulled_shards.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "belay/train/optimizer.hpp"
#include "failures/support/on_host.hpp"

using namespace pulled_shards;
using belay::stream_policy;

namespace {

struct tall {
  belay::parameter<float> weight{{"weight", {90, 97}, belay::initial::normal(1)}};
  void for_each_parameter(auto&& visit) { visit(weight); }
};

}  // namespace

TEST_CASE("a gather reads what every rank's update has left, however late streams are") {
  for (const int ranks : {1, 2, 3}) {
    const std::vector<double> expected = train(on_host{1});
    REQUIRE(expected.size() == 6);
    const std::vector<double> own = train(on_host{ranks});
    for (std::size_t step = 0; step < 6; ++step) CHECK(own[step] == doctest::Approx(expected[step]).epsilon(1e-6));
    CHECK(train(on_host{ranks, {stream_policy::queued, 0}}) == own);
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      CAPTURE(seed);
      CHECK(train(on_host{ranks, {stream_policy::adversarial, seed}}) == own);
    }
  }
}

TEST_CASE("an update that ends without the barrier is seen: late streams change the numbers") {
  const std::vector<double> expected = train(on_host{3});
  std::string other;
  for (std::uint64_t seed = 0; seed < 12; ++seed)
    if (train(on_host{3, {stream_policy::adversarial, seed}}, update_ends::without) != expected)
      other += " " + std::to_string(seed);
  MESSAGE("without the barrier: other losses with seeds" << other);
  CHECK(other != "");
}

TEST_CASE("no layer gathers between a commit and its update: peers write what it would read") {
  CHECK_THROWS_WITH_AS(on_host{2}(early_gather()), doctest::Contains(early_words), belay::usage_error);
}

TEST_CASE("a rank reads a whole parameter by itself, after the update of all") {
  for (const int ranks : {2, 3}) {
    std::vector<float> seen;
    const auto reader = [&seen](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.data = rank.size()}};
      two_layers net(9);
      belay::parameter_store store{run, mesh, net, belay::zero<3>{}, {.seed = 3, .bucket_bytes = 64}};
      CHECK(store.gathers_alone());
      store.rewrite([&] {
        net.first.weight.each_held([&](std::size_t at, auto values) {
          for (std::size_t i = 0; i < values.size() && !run.rehearsing(); ++i) values[i] = static_cast<float>(at + i);
        });
      });
      if (run.rehearsing() || rank.number() == 1) {  // alone
        const auto whole = store.read(net.first.weight);
        if (!run.rehearsing()) seen.assign(whole.values().begin(), whole.values().end());
      }
    };
    belay::launch(belay::host::world{ranks}, reader);
    REQUIRE(seen.size() == 54);
    for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == static_cast<float>(i));
  }
}

TEST_CASE("parameters that are filled again are seen by all ranks at once") {
  std::vector<float> expected;
  for (const int ranks : {1, 2, 3})
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      std::vector<float> seen;
      const auto body = [&seen](auto& rank, auto& run) {
        belay::mesh mesh{rank, {.data = rank.size()}};
        tall net;
        belay::parameter_store store{run, mesh, net, belay::zero<3>{}, {.seed = 3}};
        store.fill(4);
        const auto whole = store.read(net.weight);
        if (!run.rehearsing() && rank.number() == rank.size() - 1)
          seen.assign(whole.values().begin(), whole.values().end());
      };
      belay::launch(belay::host::world{ranks}, body, {.streams = {stream_policy::adversarial, seed}});
      REQUIRE(seen.size() == 90 * 97);
      if (expected.empty()) expected = seen;
      CHECK(seen == expected);
    }
}
