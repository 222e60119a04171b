// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/math.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace {

using namespace belay::kernel;

// Distance in representable numbers between `got` and the reference rounded to T's grid around `want`.
template <class T, class Wide>
double ulps(T got, Wide want) {
  const T near = static_cast<T>(want);
  const T step = std::nextafter(std::abs(near), std::numeric_limits<T>::infinity()) - std::abs(near);
  return static_cast<double>(std::abs(static_cast<Wide>(got) - want) / static_cast<Wide>(step));
}

}  // namespace

TEST_CASE("the exponential in float is within 2 units over the whole normal range") {
  double worst = 0;
  for (std::uint32_t bits = 0; bits < 0x42b00000u; bits += 97) {  // magnitudes up to 88
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      if (x > -87.3f) worst = std::max(worst, ulps(exponential(x), std::exp(static_cast<double>(x))));
    }
  }
  CHECK(worst <= 2.0);
  CHECK(exponential(0.0f) == 1.0f);
}

TEST_CASE("the exponential in double is within 1e-15 over the whole normal range") {
  long double worst = 0;
  for (double x = -708; x < 709.7; x += 0.00137) {
    const long double want = std::exp(static_cast<long double>(x));
    worst = std::max(worst, std::abs(static_cast<long double>(exponential(x)) - want) / want);
  }
  CHECK(worst <= 1e-15L);
  CHECK(exponential(0.0) == 1.0);
}

TEST_CASE_TEMPLATE("the exponential ends in zero and infinity and keeps NaN", T, float, double) {
  const T inf = std::numeric_limits<T>::infinity();
  CHECK(exponential(-inf) == T(0));
  CHECK(exponential(inf) == inf);
  CHECK(exponential(T(-1e30)) == T(0));
  CHECK(exponential(std::numeric_limits<T>::max()) == inf);
  CHECK(std::isnan(exponential(std::numeric_limits<T>::quiet_NaN())));
  CHECK(std::isnan(exponential(-std::numeric_limits<T>::quiet_NaN())));
  const T largest = std::log(std::numeric_limits<T>::max());
  CHECK(std::isfinite(exponential(std::nextafter(largest, T(0)))));
  CHECK(exponential(std::nextafter(largest, inf) + T(0.001)) == inf);
  for (T x = T(1.01) * std::log(std::numeric_limits<T>::min()); std::exp(x) > 0; x -= T(0.37)) {
    CHECK(std::abs(exponential(x) - std::exp(x)) <= 2 * std::numeric_limits<T>::denorm_min());
  }
}

TEST_CASE_TEMPLATE("the logarithm is within two units everywhere, and right at its edges", T, float, double) {
  double worst = 0;
  for (T x = std::numeric_limits<T>::denorm_min(); x < std::numeric_limits<T>::max() / 2; x *= T(1.0137)) {
    worst = std::max(worst, ulps(logarithm(x), std::log(static_cast<long double>(x))));
    if (x < std::numeric_limits<T>::min()) x += std::numeric_limits<T>::denorm_min();
  }
  for (T x = T(0.5); x < T(2); x += T(0.00037)) {
    worst = std::max(worst, ulps(logarithm(x), std::log(static_cast<long double>(x))));
  }
  CHECK(worst <= 2.0);
  const T inf = std::numeric_limits<T>::infinity();
  CHECK(logarithm(T(1)) == T(0));
  CHECK(logarithm(T(0)) == -inf);
  CHECK(logarithm(inf) == inf);
  CHECK(std::isnan(logarithm(T(-1))));
  CHECK(std::isnan(logarithm(std::numeric_limits<T>::quiet_NaN())));
}

TEST_CASE_TEMPLATE("the square root is within one unit everywhere", T, float, double) {
  T worst = 0;
  for (T x = std::numeric_limits<T>::denorm_min(); x < std::numeric_limits<T>::max() / 2; x *= T(1.0137)) {
    const T want = std::sqrt(x);
    worst = std::max(worst, std::abs(square_root(x) - want) / (std::nextafter(want, T(1e30)) - want));
    if (x < std::numeric_limits<T>::min()) x += std::numeric_limits<T>::denorm_min();
  }
  CHECK(worst <= T(1));
  const T inf = std::numeric_limits<T>::infinity();
  CHECK(square_root(T(0)) == T(0));
  CHECK(square_root(inf) == inf);
  CHECK(std::isfinite(square_root(std::numeric_limits<T>::max())));
  CHECK(std::isnan(square_root(T(-1))));
  CHECK(std::isnan(square_root(std::numeric_limits<T>::quiet_NaN())));
  for (int i = 0; i < 4096; ++i) {
    CHECK(square_root(static_cast<T>(i) * static_cast<T>(i)) == doctest::Approx(i));
  }
}

TEST_CASE_TEMPLATE("sigmoid and silu have their values, limits and derivatives", T, float, double) {
  const T inf = std::numeric_limits<T>::infinity();
  CHECK(sigmoid(T(0)) == T(0.5));
  CHECK(sigmoid(inf) == T(1));
  CHECK(sigmoid(-inf) == T(0));
  CHECK(silu(T(-1000)) == T(0));
  CHECK(silu(T(1000)) == T(1000));
  CHECK(std::isnan(silu(std::numeric_limits<T>::quiet_NaN())));
  for (double x = -20; x <= 20; x += 0.37) {
    const double h = 1e-6;
    const auto s = [](double z) { return 1 / (1 + std::exp(-z)); };
    const double d_sigmoid = (s(x + h) - s(x - h)) / (2 * h);
    const double d_silu = ((x + h) * s(x + h) - (x - h) * s(x - h)) / (2 * h);
    CHECK(static_cast<double>(sigmoid(static_cast<T>(x))) == doctest::Approx(s(x)).epsilon(1e-6));
    CHECK(static_cast<double>(silu(static_cast<T>(x))) == doctest::Approx(x * s(x)).epsilon(1e-6));
    CHECK(std::abs(static_cast<double>(sigmoid_derivative(static_cast<T>(x))) - d_sigmoid) < 1e-6);
    CHECK(std::abs(static_cast<double>(silu_derivative(static_cast<T>(x))) - d_silu) < 1e-6);
  }
}
