// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/experts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "support/expert_fixture.hpp"
#include "support/toy_experts.hpp"

namespace {

using belay::frame_mode;
using belay::view;
using toy::exchange_type;
using toy::group;
using toy::heap_type;
using toy::matrix;
using toy::expert_fixture;
using toy::test_frame;

// What a whole group computed, put together in token order.
template <class T>
struct result {
  std::vector<T> y, dx, router_gradient, matrices_gradient;
  std::vector<std::int64_t> tokens;
  double balance = 0;
  belay::expert_overflow overflow;
  std::size_t leases_left = 0, bytes_left = 0, obligations_left = 0;
};

struct job {
  std::size_t experts = 4;
  std::size_t hidden = 8;
  std::size_t k = 2;
  std::size_t capacity = 0;            // 0: room for all
  std::vector<std::size_t> rows{9};    // of each rank
  double router_bias_to_expert_0 = 0;  // large: every token visits expert 0 first
  double balance_scale = 0.25;
};

template <class T>
toy::parameters<T> make_parameters(const job& what) {
  return toy::parameters<T>(what.experts, what.hidden, 11);
}

template <class T>
std::vector<T> make_inputs(const job& what, std::size_t rows) {
  auto x = toy::some_numbers<T>(rows * what.hidden, 5);
  if (what.router_bias_to_expert_0 != 0) {
    for (std::size_t row = 0; row < rows; ++row) x[row * what.hidden] = static_cast<T>(what.router_bias_to_expert_0);
  }
  return x;
}

template <class T>
toy::parameters<T> prepared(const job& what) {
  auto weights = make_parameters<T>(what);
  if (what.router_bias_to_expert_0 != 0) {
    for (std::size_t e = 0; e < what.experts; ++e) weights.router[e * what.hidden] = static_cast<T>(e == 0 ? 4 : 0);
  }
  return weights;
}

// One forward and backward over what.rows.size() ranks.
template <class T>
result<T> run(const job& what) {
  const std::size_t rows = std::accumulate(what.rows.begin(), what.rows.end(), std::size_t{0});
  const auto x = make_inputs<T>(what, rows);
  const auto dy = toy::some_numbers<T>(rows * what.hidden, 6);
  result<T> out;
  out.y.resize(x.size());
  out.dx.resize(x.size());
  out.router_gradient.resize(what.experts * what.hidden);
  out.matrices_gradient.resize(what.experts * what.hidden * what.hidden);
  out.tokens.resize(what.experts);
  belay::host::world{static_cast<int>(what.rows.size())}.run([&](belay::host::rank& rank) {
    const group ranks = rank.world();
    const auto me = static_cast<std::size_t>(ranks.rank());
    const std::size_t mine = what.rows[me];
    const std::size_t first = std::accumulate(what.rows.begin(), what.rows.begin() + ranks.rank(), std::size_t{0});
    const std::size_t capacity = what.capacity > 0 ? what.capacity : rows * what.k;
    expert_fixture<T> here(ranks, {what.experts, what.k, what.hidden, capacity});
    here.exchange.prepare(0, 1, 1);
    here.exchange.begin_step();
    auto weights = prepared<T>(what);
    toy::layer<T, exchange_type<T>> layer{weights, here.exchange, what.k, static_cast<T>(what.balance_scale)};
    std::vector<T> dx(mine * what.hidden);
    {
      auto frame = here.begin(frame_mode::owing);
      auto saved = layer.forward(frame, {x.data() + first * what.hidden, {mine, what.hidden}});
      std::copy_n(saved.out.data(), saved.out.size(), out.y.data() + first * what.hidden);
      layer.backward(frame, std::move(saved), {dy.data() + first * what.hidden, {mine, what.hidden}},
                     matrix(dx, mine, what.hidden), x.data() + first * what.hidden);
    }
    here.end();
    std::copy(dx.begin(), dx.end(), out.dx.data() + first * what.hidden);
    auto& statistics = here.exchange.statistics();
    ranks.all_reduce(statistics.probability_sums(), belay::sum);
    ranks.all_reduce(std::span<T>(weights.router_gradient), belay::sum);
    const std::size_t part = here.exchange.local_experts() * what.hidden * what.hidden;
    std::copy_n(weights.matrices_gradient.data() + me * part, part, out.matrices_gradient.data() + me * part);
    const belay::expert_overflow overflow = here.exchange.take_overflow();
    if (me == what.rows.size() - 1) {  // any rank knows
      out.router_gradient = weights.router_gradient;
      statistics.add_expert_tokens(0, out.tokens);
      out.balance = statistics.balance(0, 0);
      out.overflow = overflow;
      out.leases_left = here.leases();
      out.bytes_left = here.meter.live_bytes();
      out.obligations_left = here.engine.obligations().open_count();
    }
  });
  return out;
}

template <class T>
double distance(const std::vector<T>& a, const std::vector<T>& b) {
  double square = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    square += std::pow(static_cast<double>(a[i] - b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(square / (norm > 0 ? norm : 1));
}

const std::vector<job> meshes = {
    {.rows = {9}},
    {.rows = {5, 4}},
    {.rows = {0, 9}},
    {.rows = {9, 0}},
    {.rows = {2, 3, 0, 4}},
    {.experts = 6, .rows = {4, 1, 4}},
    {.experts = 3, .hidden = 17, .k = 3, .rows = {1, 2, 6}},
    {.hidden = 33, .k = 1, .rows = {3, 6}},
};

}  // namespace

TEST_CASE("outputs and every gradient agree with a dense layer over all tokens, on 1 to 4 ranks") {
  for (const job& what : meshes) {
    CAPTURE(what.rows.size());
    CAPTURE(what.k);
    const auto got = run<double>(what);
    auto weights = prepared<double>(what);
    const toy::dense<double> expected(weights, what.k, what.balance_scale, make_inputs<double>(what, 9),
                                      toy::some_numbers<double>(9 * what.hidden, 6));
    CHECK(distance(got.y, expected.y) < 1e-12);
    CHECK(distance(got.dx, expected.dx) < 1e-12);
    CHECK(distance(got.router_gradient, weights.router_gradient) < 1e-12);
    CHECK(distance(got.matrices_gradient, weights.matrices_gradient) < 1e-12);
    CHECK(got.balance == doctest::Approx(expected.balance).epsilon(1e-12));
    CHECK(std::accumulate(got.tokens.begin(), got.tokens.end(), std::int64_t{0}) ==
          static_cast<std::int64_t>(9 * what.k));
    CHECK_FALSE(got.overflow.happened());
    CHECK(got.leases_left == 0);
    CHECK(got.bytes_left == 0);
    CHECK(got.obligations_left == 0);
  }
}

TEST_CASE("dividing the tokens among ranks changes no bit of outputs, input gradients and expert gradients") {
  const auto whole = run<float>({.rows = {9}});
  for (const job& what : {job{.rows = {5, 4}}, job{.rows = {0, 9}}, job{.rows = {2, 3, 0, 4}}}) {
    const auto parts = run<float>(what);
    CHECK(parts.y == whole.y);
    CHECK(parts.dx == whole.dx);
    CHECK(parts.matrices_gradient == whole.matrices_gradient);
    CHECK(parts.tokens == whole.tokens);
  }
}

TEST_CASE("with experts that return their input, combine gives every token back") {
  for (int count : {1, 2, 3}) {
    belay::host::world{count}.run([&](belay::host::rank& rank) {
      constexpr std::size_t hidden = 12, rows = 7, experts = 6;
      expert_fixture<double> here(rank.world(), {experts, 2, hidden, 2 * rows * 3});
      auto x = toy::some_numbers<double>(rows * hidden, 40 + static_cast<std::size_t>(rank.number()));
      auto logits = toy::some_numbers<double>(rows * experts, 50 + static_cast<std::size_t>(rank.number()));
      std::vector<double> y;
      {
        auto frame = here.begin(frame_mode::observing);
        auto routed = belay::route<double>(frame, matrix(logits, rows, experts), 2);
        auto sent = here.exchange.dispatch(frame, matrix(x, rows, hidden), routed);
        std::copy_n(sent.rows().data(), sent.offsets().back() * hidden, sent.outputs().data());
        std::move(sent).combine(frame, matrix(y, rows, hidden)).discard(frame, "forward only");
      }
      here.end();
      CHECK(distance(y, x) < 1e-14);
      CHECK(here.leases() == 0);
      static_cast<void>(here.exchange.take_overflow());
    });
  }
}

TEST_CASE("rows an expert receives are ordered by source rank, then by token") {
  belay::host::world{2}.run([](belay::host::rank& rank) {
    constexpr std::size_t rows = 4, experts = 2;
    expert_fixture<float> here(rank.world(), {experts, 1, 1, 2 * rows});
    std::vector<float> x, logits;
    for (std::size_t row = 0; row < rows; ++row) {
      x.push_back(static_cast<float>(10 * rank.number()) + static_cast<float>(row));
      logits.push_back(row % 2 == 0 ? 1.0F : 0.0F);  // even tokens to expert 0
      logits.push_back(0.5F);
    }
    auto frame = here.begin(frame_mode::observing);
    auto routed = belay::route<float>(frame, matrix(logits, rows, experts), 1);
    auto sent = here.exchange.dispatch(frame, matrix(x, rows, 1), routed);
    const float odd = rank.number() == 0 ? 0.0F : 1.0F;
    const std::vector<float> expected{0 + odd, 2 + odd, 10 + odd, 12 + odd};
    CHECK(sent.offsets()[0] == 0);
    CHECK(sent.offsets()[1] == 4);
    CHECK(std::equal(expected.begin(), expected.end(), sent.rows().data()));
    std::move(sent).discard(frame, "only looked at");
    CHECK(here.leases() == 0);
    CHECK(here.engine.obligations().open_count() == 0);
  });
}

TEST_CASE("everything sent to one expert is reported, nothing is written outside a slot, and more room repairs it") {
  const job crowded{.capacity = 5, .rows = {5, 4}, .router_bias_to_expert_0 = 30};
  const auto got = run<double>(crowded);
  CHECK(got.overflow.happened());
  CHECK(got.overflow.needed >= 9);
  CHECK(got.overflow.capacity == 5);
  CHECK(got.tokens[0] == 9);
  CHECK(got.leases_left == 0);
  CHECK(got.obligations_left == 0);
  for (const auto* values : {&got.y, &got.dx, &got.router_gradient, &got.matrices_gradient}) {
    for (double value : *values) CHECK(std::isfinite(value));
  }
  job again = crowded;
  again.capacity = got.overflow.needed;
  const auto repaired = run<double>(again);
  again.capacity = 0;
  const auto roomy = run<double>(again);
  CHECK_FALSE(repaired.overflow.happened());
  CHECK(repaired.y == roomy.y);
  CHECK(repaired.dx == roomy.dx);
  CHECK(repaired.matrices_gradient == roomy.matrices_gradient);
  CHECK(repaired.router_gradient == roomy.router_gradient);
}

TEST_CASE("widths and counts of experts that wrap round are refused") {
  belay::host::world{1}.run([](auto& rank) {
    expert_fixture<float> here(rank.world(), {2, 1, 4, 8});
    const auto made = [&](const belay::expert_settings& settings) {
      toy::exchange_type<float>(rank.world(), here.heap, settings);
    };
    // 2^31 - 1 rows of 2^33 + 8 elements take 2^66 bytes and a little.
    CHECK_THROWS_WITH_AS(made({.experts = 2, .k = 1, .hidden = (std::size_t{1} << 33) + 8, .capacity = (1U << 31) - 1}),
                         doctest::Contains("2147483647 rows of 8589934600 elements is more than any memory holds"),
                         belay::size_error);
    CHECK_THROWS_AS(made({.experts = std::size_t{1} << 61, .k = 1, .hidden = 1, .capacity = 1}), belay::size_error);
    CHECK_THROWS_AS(here.exchange.set_capacity(1U << 31), belay::usage_error);
    CHECK_THROWS_AS(here.exchange.prepare(0, std::size_t{1} << 32, std::size_t{1} << 32), belay::size_error);
    CHECK(here.exchange.statistics().layers() == 0);
  });
}

TEST_CASE("a routing whose counts are not those of its choices is refused before a row is placed") {
  if constexpr (!belay::checked(belay::check_level::local)) return;
  belay::host::world{1}.run([](auto& rank) {
    for (const std::int64_t wrong : {std::int64_t{-2}, std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}) {
      expert_fixture<float> here(rank.world(), {2, 1, 4, 8});
      std::vector<float> x, logits{1, 0, 0, 1, 1, 0};
      auto frame = here.begin(frame_mode::observing);
      auto routed = belay::route<float>(frame, matrix(logits, 3, 2), 1);
      routed.counts[0] = wrong;
      const auto sent = [&] { here.exchange.dispatch(frame, matrix(x, 3, 4), routed).discard(frame, "it is refused"); };
      CHECK_THROWS_WITH_AS(sent(), doctest::Contains("counts of the routing do not add up to its 3 choices"),
                           belay::usage_error);
    }
  });
}
