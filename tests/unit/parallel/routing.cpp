// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/routing.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"
#include "unit/kernel/support/lanes.hpp"

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

// What rows are routed to, and the gradient of their logits. Of a NaN it does not matter which it is.
template <class T>
struct routed_rows {
  std::vector<std::int32_t> choices;
  std::vector<T> weights, probabilities, gradient;
  [[nodiscard]] bool same(const routed_rows& other) const {
    const auto bits = [](const std::vector<T>& a, const std::vector<T>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), [](const T& x, const T& y) {
        return (std::isnan(x) && std::isnan(y)) || std::memcmp(&x, &y, sizeof x) == 0;
      });
    };
    return choices == other.choices && bits(weights, other.weights) && bits(probabilities, other.probabilities) &&
           bits(gradient, other.gradient);
  }
};

// `run(rows, kernel)` runs a kernel of rows.
template <class T>
routed_rows<T> routed_by(const std::vector<T>& logits, std::size_t experts, std::size_t k, const auto& run) {
  const std::size_t rows = logits.size() / experts;
  routed_rows<T> out{std::vector<std::int32_t>(rows * k), std::vector<T>(rows * k), std::vector<T>(rows * experts),
                     std::vector<T>(rows * experts)};
  const std::vector<std::int64_t> counts(experts, 3);
  const std::vector<T> dweights = some_logits<T>(rows * k, 9);
  belay::route_row<T> forward{
      logits.data(), out.choices.data(), out.weights.data(), out.probabilities.data(), experts, k, 0};
  run(rows, forward);
  const routed_rows<T> first = out;
  forward.replay = 1;
  run(rows, forward);
  CHECK(out.same(first));
  run(rows, belay::route_gradient_row<T>{out.choices.data(), out.weights.data(), out.probabilities.data(),
                                         counts.data(), dweights.data(), out.gradient.data(), experts, k, T(0.3)});
  return out;
}

// The k largest of a row, the lower number first where two are equal; none of two that are NaN is larger.
template <class T>
std::vector<std::int32_t> largest(const T* row, std::size_t experts, std::size_t k) {
  std::vector<std::int32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return row[a] > row[b]; });
  order.resize(k);
  return order;
}

}  // namespace

TEST_CASE_TEMPLATE("rows are routed with the same bits by one thread and by a warp, ties and no numbers included", T,
                   float, double) {
  constexpr T infinite = std::numeric_limits<T>::infinity(), none = std::numeric_limits<T>::quiet_NaN();
  constexpr std::size_t rows = 7;
  for (const std::size_t experts : {1u, 7u, 8u, 33u, 256u}) {
    const std::size_t most = std::min<std::size_t>(experts, 8);
    for (std::size_t k = experts == 8 ? 1 : most; k <= most; ++k) {
      CAPTURE(experts);
      CAPTURE(k);
      std::vector<T> logits = some_logits<T>(rows * experts, 5);
      for (std::size_t e = 0; e < experts; ++e) {
        logits[experts + e] = static_cast<T>(e * 7 % 4);  // equal ones
        logits[2 * experts + e] *= T(60);                 // whose probabilities are 0 or subnormal
        logits[3 * experts + e] = -infinite;
      }
      logits[4 * experts] = -infinite;
      logits[5 * experts + experts / 2] = infinite;
      logits[6 * experts] = none;
      const auto one = routed_by(logits, experts, k, [](std::size_t count, const auto& kernel) {
        belay::kernel::for_each_row(count, kernel);
      });
      const auto many = routed_by(
          logits, experts, k, [](std::size_t count, const auto& kernel) { test::run_by_lanes<32>(count, kernel); });
      CHECK(one.same(many));
      for (std::size_t row = 0; row < rows; ++row) {
        const auto* const choice = one.choices.data() + row * k;
        CHECK(std::vector<std::int32_t>(choice, choice + k) ==
              largest(one.probabilities.data() + row * experts, experts, k));
        T total = 0;
        for (std::size_t j = 0; j < k; ++j) total += one.weights[row * k + j];
        const bool is_number = row < 3 || (row == 4 && experts > 1);
        CHECK(std::isnan(total) == !is_number);
        if (is_number) CHECK(total == doctest::Approx(1));
      }
    }
  }
}

TEST_CASE("a token may visit all of many experts") {
  constexpr std::size_t experts = 70;
  const std::vector<float> logits = some_logits<float>(2 * experts, 8);
  const auto routed = routed_by(logits, experts, experts,
                                [](std::size_t count, const auto& kernel) { test::run_by_lanes<32>(count, kernel); });
  const auto* const first = routed.choices.data() + experts;
  CHECK(std::vector<std::int32_t>(first, first + experts) == largest(logits.data() + experts, experts, experts));
}

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

TEST_CASE("a gradient of the logits in a narrower type is the one in numbers, rounded once") {
  constexpr std::size_t rows = 5, experts = 6, k = 2;
  call_site site;
  belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::owing, site.memory};
  auto logits = some_logits<float>(rows * experts, 6), dweights = some_logits<float>(rows * k, 7);
  const auto routed = belay::route<float>(frame, matrix(logits, rows, experts), k);
  for (std::size_t e = 0; e < experts; ++e) routed.global_counts[e] = routed.counts[e];
  std::vector<float> numbers;
  std::vector<belay::bf16> narrow;
  belay::route_backward<float>(frame, routed, matrix(dweights, rows, k), 0.3F, matrix(numbers, rows, experts));
  belay::route_backward<float>(frame, routed, matrix(dweights, rows, k), 0.3F, matrix(narrow, rows, experts));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    CHECK(static_cast<float>(narrow[i]) == static_cast<float>(belay::bf16(numbers[i])));
}

TEST_CASE("before a dispatch the selections by all ranks are none, also where there are no rows") {
  call_site site;
  belay::frame<belay::host_engine> frame{site.engine, site.call, belay::frame_mode::owing, site.memory};
  for (const std::size_t rows : {std::size_t{3}, std::size_t{3}, std::size_t{0}, std::size_t{0}}) {
    auto logits = some_logits<float>(rows * 4, 6);
    const auto routed = belay::route<float>(frame, matrix(logits, rows, 4), 1);
    for (std::size_t e = 0; e < 4; ++e) CHECK(routed.global_counts[e] == 0);
    for (std::size_t e = 0; e < 4; ++e) routed.global_counts[e] = -1;  // memory that is leased again
    site.engine.activations().release(site.memory.kept);
    site.engine.activations().release(site.memory.remembered);
  }
}

TEST_CASE("perfectly balanced experts have a load-balancing loss of k") {
  const std::int64_t selections[4] = {6, 6, 6, 6};
  const double sums[4] = {3, 3, 3, 3};
  CHECK(belay::balance_loss(selections, sums, 4, 12) == doctest::Approx(2));
  CHECK(belay::balance_loss(selections, sums, 4, 0) == 0);
}
