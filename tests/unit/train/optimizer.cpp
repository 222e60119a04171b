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
  for (std::size_t ranks : {1u, 2u, 3u, 4u, 7u})
    for (std::size_t bucket_bytes : {1u, 16384u, 1u << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      const auto whole = fake::train<float>(ranks, zero_stage::none, 3, bucket_bytes);
      const auto sharded = fake::train<float>(ranks, zero_stage::optimizer_state, 3, bucket_bytes);
      CHECK(whole.values == sharded.values);
      CHECK(whole.gradients == sharded.gradients);
    }
}

TEST_CASE("buckets of any size give the same bits") {
  const auto small = fake::train<float>(2, zero_stage::optimizer_state, 3, 1);
  const auto large = fake::train<float>(2, zero_stage::optimizer_state, 3, 1u << 20);
  CHECK(small.values == large.values);
}

TEST_CASE("replicas that divide the batch train like one rank") {
  const auto one = fake::train<double>(1, zero_stage::none);
  for (std::size_t ranks : {2u, 3u, 4u}) {
    const auto many = fake::train<double>(ranks, zero_stage::optimizer_state);
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
  for (std::size_t size : fake::awkward_sizes) elements += size;
  for (std::size_t ranks : {1u, 3u, 4u}) {
    CHECK(fake::train<float>(ranks, zero_stage::optimizer_state, 1).state_elements == 2 * elements);
    CHECK(fake::train<float>(ranks, zero_stage::none, 1).state_elements == 2 * elements * ranks);
  }
}

TEST_CASE("three steps of AdamW equal the textbook, decay only where asked, clip applied once") {
  fake::shared_state shared(1);
  fake::queue queue;
  fake::rank_state<double> state(fake::group(shared, queue, 0), zero_stage::optimizer_state, 1024, {2, 2});
  std::vector<double> moments(belay::adamw<double, fake::group>::state_elements(*state.buckets));
  belay::adamw<double, fake::group> optimizer({.learning_rate = 0.1}, *state.buckets, moments);
  double x[2] = {state.parameters[0].value()[1], state.parameters[1].value()[1]};
  double m[2] = {};
  double v[2] = {};
  for (std::uint64_t s = 1; s <= 3; ++s) {
    state.buckets->begin(1);
    for (std::size_t p = 0; p < 2; ++p) state.parameters[p].gradient()[1] = 6.0 * static_cast<double>(p + s);
    state.buckets->contributed(0, 2, 0);
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
  fake::shared_state shared(1);
  fake::queue queue;
  const fake::group group(shared, queue, 0);
  fake::rank_state<float> state(group, zero_stage::none, 1024);
  fake::rank_state<float> other(group, zero_stage::none, 1024);
  std::vector<float> moments(belay::adamw<float, fake::group>::state_elements(*state.buckets));
  belay::adamw<float, fake::group> optimizer({}, *state.buckets, moments);
  state.buckets->begin(0);
  other.buckets->begin(0);
  auto gradients = state.buckets->finish(belay::target_tokens{1});
  auto foreign = other.buckets->finish(belay::target_tokens{1});
  optimizer.apply(token(1), std::move(gradients), belay::clip_factor::none());
  CHECK_THROWS_AS(optimizer.apply(token(2), std::move(gradients), belay::clip_factor::none()), belay::usage_error);
  CHECK_THROWS_AS(optimizer.apply(token(2), std::move(foreign), belay::clip_factor::none()), belay::usage_error);
  CHECK(foreign.latest());  // what was refused is not used up
  CHECK(optimizer.steps() == 1);
  CHECK_THROWS_AS((belay::adamw<float, fake::group>({}, *state.buckets, std::span(moments).first(3))),
                  belay::usage_error);
}

TEST_CASE("a token is good for one step of an optimizer, and for no step before its last") {
  fake::shared_state shared(1);
  fake::queue queue;
  const fake::group group(shared, queue, 0);
  fake::rank_state<float> state(group, zero_stage::none, 1024);
  fake::rank_state<float> other(group, zero_stage::none, 1024);
  std::vector<float> moments(belay::adamw<float, fake::group>::state_elements(*state.buckets));
  std::vector<float> other_moments(moments.size());
  belay::adamw<float, fake::group> optimizer({}, *state.buckets, moments);
  belay::adamw<float, fake::group> second({}, *other.buckets, other_moments);
  const auto gradients_of = [](fake::rank_state<float>& from) {
    from.buckets->begin(1);
    from.backward(0, 0);
    return from.buckets->finish(belay::target_tokens{1});
  };
  const auto apply = [&](const belay::committed_step& step) {
    optimizer.apply(step, gradients_of(state), belay::clip_factor::none());
  };
  const belay::committed_step third = token(3);
  apply(third);
  const std::vector<float> values = state.values;
  CHECK_THROWS_WITH_AS(apply(third), doctest::Contains("the token of step 3 after that of step 3"), belay::usage_error);
  CHECK_THROWS_WITH_AS(apply(token(2)), doctest::Contains("the token of step 2 after that of step 3"),
                       belay::usage_error);
  CHECK(state.values == values);
  CHECK(optimizer.steps() == 1);
  second.apply(third, gradients_of(other), belay::clip_factor::none());  // one step, several optimizers
  apply(token(5));                                                       // step 4 was replayed
  belay::committed_step used = token(6);
  const belay::committed_step moved = std::move(used);
  CHECK_THROWS_AS(apply(used), belay::usage_error);
  apply(moved);
  CHECK(optimizer.steps() == 3);
}

TEST_CASE("gradients of an older reduction are refused by optimizer and norm, and nothing changes") {
  fake::shared_state shared(1);
  fake::queue queue;
  const fake::group group(shared, queue, 0);
  fake::rank_state<float> state(group, zero_stage::none, 1024);
  std::vector<float> moments(belay::adamw<float, fake::group>::state_elements(*state.buckets));
  belay::adamw<float, fake::group> optimizer({}, *state.buckets, moments);
  belay::norm_table sizes;
  std::vector<belay::norm_place> places;
  for (std::size_t size : fake::awkward_sizes) places.push_back({sizes.add(size), 0});
  std::vector<double> memory(sizes.entries());
  belay::gradient_norm<float> norm(sizes, places, memory);
  state.buckets->begin(1);
  state.backward(0, 0);
  auto old = state.buckets->finish(belay::target_tokens{1});
  const std::vector<float> values = state.values;
  const auto refused = [&] {
    CHECK_FALSE(old.latest());
    CHECK_THROWS_WITH_AS(optimizer.apply(token(1), std::move(old), belay::clip_factor::none()),
                         doctest::Contains("of reduction 1 of their buckets, which have begun another"),
                         belay::usage_error);
    CHECK_THROWS_AS(static_cast<void>(norm(old, group)), belay::usage_error);
    CHECK(state.values == values);
  };
  CHECK(old.latest());
  state.buckets->begin(1);  // zeroed: they are no one's any more
  refused();
  state.backward(1, 0);
  refused();
  auto latest = state.buckets->finish(belay::target_tokens{1});
  refused();
  CHECK(norm(latest, group).value() > 0);
  optimizer.apply(token(1), std::move(latest), belay::clip_factor::none());
  CHECK_THROWS_AS(static_cast<void>(norm(latest, group)), belay::usage_error);  // used up
  CHECK(state.values != values);
}
