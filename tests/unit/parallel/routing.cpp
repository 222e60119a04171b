// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/routing.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"

namespace {

using belay::extents;
using belay::view;

// One invocation on one rank: a frame over memory of its own.
struct call_site {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages(1 << 20), meter};
  belay::invocation call;
  belay::invocation_memory memory;
};

template <class T>
view<T, 2> matrix(std::vector<T>& values, std::size_t rows, std::size_t columns) {
  values.resize(rows * columns);
  return {values.data(), {rows, columns}};
}

template <class T>
std::vector<T> some_logits(std::size_t count, unsigned seed) {
  std::vector<T> out(count);
  std::uint32_t state = seed * 2654435761U + 1;
  for (T& value : out) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<T>(static_cast<double>(state >> 8) / (1 << 24) * 6 - 3);
  }
  return out;
}

}  // namespace

TEST_CASE("a token goes to its most probable experts, best first, with weights that sum to one") {
  call_site site;
  belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::owing, site.memory};
  std::vector<float> logits{0.0F, 3.0F, -1.0F, 2.0F,  //
                            5.0F, 1.0F, 1.5F,  -2.0F};
  const auto routed = belay::route<float>(frame, matrix(logits, 2, 4), 2);
  CHECK(routed.choices(0, 0) == 1);
  CHECK(routed.choices(0, 1) == 3);
  CHECK(routed.choices(1, 0) == 0);
  CHECK(routed.choices(1, 1) == 2);
  CHECK(routed.weights(0, 0) == doctest::Approx(1 / (1 + std::exp(-1.0))));
  CHECK(routed.weights(0, 0) + routed.weights(0, 1) == doctest::Approx(1));
  double sum = 0;
  for (std::size_t e = 0; e < 4; ++e) sum += static_cast<double>(routed.probabilities(1, e));
  CHECK(sum == doctest::Approx(1));
  CHECK(routed.counts[0] == 1);
  CHECK(routed.counts[1] == 1);
  CHECK(routed.counts[2] == 1);
  CHECK(routed.counts[3] == 1);
}

TEST_CASE("equal probabilities go to the lower expert") {
  call_site site;
  belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::owing, site.memory};
  std::vector<double> logits(5, 0.25);
  const auto routed = belay::route<double>(frame, matrix(logits, 1, 5), 3);
  for (std::size_t j = 0; j < 3; ++j) CHECK(routed.choices(0, j) == static_cast<int>(j));
}

TEST_CASE("logits that are not numbers still choose different experts that exist") {
  call_site site;
  belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::owing, site.memory};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> logits{nan, nan, nan, 1.0F, nan, 2.0F};
  const auto routed = belay::route<float>(frame, matrix(logits, 2, 3), 2);
  for (std::size_t row = 0; row < 2; ++row) {
    CHECK(routed.choices(row, 0) != routed.choices(row, 1));
    for (std::size_t j = 0; j < 2; ++j) {
      CHECK(routed.choices(row, j) >= 0);
      CHECK(routed.choices(row, j) < 3);
    }
  }
}

TEST_CASE("zero rows are routed to nobody") {
  call_site site;
  belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::owing, site.memory};
  std::vector<float> logits;
  const auto routed = belay::route<float>(frame, matrix(logits, 0, 4), 2);
  CHECK(routed.rows == 0);
  for (std::size_t e = 0; e < 4; ++e) CHECK(routed.counts[e] == 0);
}

TEST_CASE("more choices than experts are refused") {
  call_site site;
  belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::owing, site.memory};
  std::vector<float> logits(3);
  CHECK_THROWS_AS(static_cast<void>(belay::route<float>(frame, matrix(logits, 1, 3), 4)), belay::usage_error);
  CHECK_THROWS_AS(static_cast<void>(belay::route<float>(frame, matrix(logits, 1, 3), 0)), belay::usage_error);
}

TEST_CASE("a recompute sends every token where its forward sent it, even when rounding turned a tie") {
  call_site site;
  std::vector<float> logits{1.0F, 2.0F, 2.0F + 1e-6F};
  {
    belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::observing, site.memory};
    const auto routed = belay::route<float>(frame, matrix(logits, 1, 3), 1);
    CHECK(routed.choices(0, 0) == 2);
  }
  logits[1] = 2.0F + 2e-6F;  // rounded anew, expert 1 would win
  belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::replaying, site.memory};
  const auto routed = belay::route<float>(frame, matrix(logits, 1, 3), 1);
  CHECK(routed.choices(0, 0) == 2);
  CHECK(routed.counts[2] == 1);
}

TEST_CASE("the gradient of the logits agrees with finite differences, load balancing included") {
  constexpr std::size_t rows = 7;
  constexpr std::size_t experts = 5;
  constexpr std::size_t k = 2;
  constexpr double balance_scale = 0.3;
  auto values = some_logits<double>(rows * experts, 3);
  auto dweights = some_logits<double>(rows * k, 4);
  call_site site;

  const auto objective = [&](belay::routing<double>& routed) {
    double sum = 0;
    for (std::size_t i = 0; i < rows * k; ++i) sum += dweights[i] * routed.weights.data()[i];
    double means[experts] = {};
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t e = 0; e < experts; ++e) means[e] += routed.probabilities(row, e);
    }
    return sum + balance_scale * belay::balance_loss(routed.counts.data(), means, experts, rows);
  };

  belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::owing, site.memory};
  auto routed = belay::route<double>(frame, matrix(values, rows, experts), k);
  for (std::size_t e = 0; e < experts; ++e) routed.global_counts[e] = routed.counts[e];
  std::vector<double> dlogits;
  const auto out = matrix(dlogits, rows, experts);
  belay::route_backward(frame, routed, matrix(dweights, rows, k), balance_scale, out);
  const double h = 1e-6;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double kept = values[i];
    double side[2];
    for (int s = 0; s < 2; ++s) {
      values[i] = kept + (s == 0 ? h : -h);
      belay::invocation_memory memory;
      belay::frame<belay::host_engine> other{site.engine, site.call, belay::frame_mode::owing, memory};
      auto moved = belay::route<double>(other, matrix(values, rows, experts), k);
      side[s] = objective(moved);
      site.engine.activations().release(memory.kept);
      site.engine.activations().release(memory.remembered);
    }
    values[i] = kept;
    CHECK(dlogits[i] == doctest::Approx((side[0] - side[1]) / (2 * h)).epsilon(1e-6));
  }
}

TEST_CASE("perfectly balanced experts have a load-balancing loss of k") {
  const std::int64_t selections[4] = {6, 6, 6, 6};
  const double sums[4] = {3, 3, 3, 3};
  CHECK(belay::balance_loss(selections, sums, 4, 12) == doctest::Approx(2));
  CHECK(belay::balance_loss(selections, sums, 4, 0) == 0);
}
