// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/optimizer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "../parallel/support/replica_trainer.hpp"

using belay::zero_stage;

namespace {
belay::committed_step token(std::uint64_t number) { return belay::step<belay::test_engine>::commit(number); }
}  // namespace

TEST_CASE("sharded optimizer state changes no bit, whatever the sizes") {
  for (std::size_t ranks : {1u, 2u, 3u, 4u})
    for (std::size_t bucket_bytes : {1u, 16384u, 1u << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      const auto whole = meeting::train<float>(ranks, zero_stage::none, 3, bucket_bytes);
      const auto sharded = meeting::train<float>(ranks, zero_stage::optimizer_state, 3, bucket_bytes);
      CHECK(whole.values == sharded.values);
      CHECK(whole.gradients == sharded.gradients);
    }
}

TEST_CASE("buckets of any size give the same bits") {
  const auto small = meeting::train<float>(2, zero_stage::optimizer_state, 3, 1);
  const auto large = meeting::train<float>(2, zero_stage::optimizer_state, 3, 1u << 20);
  CHECK(small.values == large.values);
}

TEST_CASE("replicas that divide the batch train like one rank") {
  const auto one = meeting::train<double>(1, zero_stage::none);
  for (std::size_t ranks : {2u, 3u, 4u}) {
    const auto many = meeting::train<double>(ranks, zero_stage::optimizer_state);
    for (std::size_t s = 0; s < one.norms.size(); ++s)
      CHECK(many.norms[s] == doctest::Approx(one.norms[s]).epsilon(1e-12));
    for (std::size_t p = 0; p < one.values.size(); ++p) {
      double largest = 0;
      for (std::size_t i = 0; i < one.values[p].size(); ++i)
        largest = std::max(largest, std::abs(many.values[p][i] - one.values[p][i]));
      CHECK(largest < 1e-9);
    }
  }
}

TEST_CASE("optimizer state is exactly two moments for every owned element") {
  std::size_t elements = 0;
  for (std::size_t size : meeting::awkward_sizes) elements += size;
  for (std::size_t ranks : {1u, 3u, 4u}) {
    CHECK(meeting::train<float>(ranks, zero_stage::optimizer_state, 1).state_elements == 2 * elements);
    CHECK(meeting::train<float>(ranks, zero_stage::none, 1).state_elements == 2 * elements * ranks);
  }
}

TEST_CASE("three steps of AdamW equal the textbook, decay only where asked, clip applied once") {
  meeting::table table(1);
  meeting::queue queue;
  meeting::rank_state<double> state(meeting::group(table, queue, 0), zero_stage::optimizer_state, 1024, {2, 2});
  std::vector<double> moments(belay::adamw<double, meeting::group>::state_elements(*state.buckets));
  belay::adamw<double, meeting::group> optimizer({.learning_rate = 0.1}, *state.buckets, moments);
  double x[2] = {state.parameters[0].value()[1], state.parameters[1].value()[1]};
  double m[2] = {};
  double v[2] = {};
  for (std::uint64_t s = 1; s <= 3; ++s) {
    state.buckets->begin(0);
    for (std::size_t p = 0; p < 2; ++p) state.parameters[p].gradient()[1] = 6.0 * static_cast<double>(p + s);
    auto gradients = state.buckets->finish(belay::target_tokens{3});
    const auto clip = belay::gradient_norm_value{8.0 - 1e-6}.clip(2.0);
    optimizer.apply(token(s), std::move(gradients), clip);
    for (std::size_t p = 0; p < 2; ++p) {
      const double g = 6.0 * static_cast<double>(p + s) / 3 * 0.25;
      m[p] = 0.9 * m[p] + 0.1 * g;
      v[p] = 0.95 * v[p] + 0.05 * g * g;
      const double m_hat = m[p] / (1 - std::pow(0.9, static_cast<double>(s)));
      const double v_hat = v[p] / (1 - std::pow(0.95, static_cast<double>(s)));
      const double decay = p == 0 ? 0.1 : 0.0;
      x[p] -= 0.1 * (m_hat / (std::sqrt(v_hat) + 1e-8) + decay * x[p]);
      CHECK(state.parameters[p].value()[1] == doctest::Approx(x[p]).epsilon(1e-13));
    }
  }
  CHECK(optimizer.steps() == 3);
}

TEST_CASE("gradients are applied once, and by the optimizer of their own buckets") {
  meeting::table table(1);
  meeting::queue queue;
  const meeting::group group(table, queue, 0);
  meeting::rank_state<float> state(group, zero_stage::none, 1024);
  meeting::rank_state<float> other(group, zero_stage::none, 1024);
  std::vector<float> moments(belay::adamw<float, meeting::group>::state_elements(*state.buckets));
  belay::adamw<float, meeting::group> optimizer({}, *state.buckets, moments);
  state.buckets->begin(0);
  other.buckets->begin(0);
  auto gradients = state.buckets->finish(belay::target_tokens{1});
  auto foreign = other.buckets->finish(belay::target_tokens{1});
  optimizer.apply(token(1), std::move(gradients), belay::clip_factor::none());
  CHECK_THROWS_AS(optimizer.apply(token(1), std::move(gradients), belay::clip_factor::none()), belay::usage_error);
  CHECK_THROWS_AS(optimizer.apply(token(1), std::move(foreign), belay::clip_factor::none()), belay::usage_error);
  CHECK(optimizer.steps() == 1);
  CHECK_THROWS_AS((belay::adamw<float, meeting::group>({}, *state.buckets, std::span(moments).first(3))),
                  belay::usage_error);
}
