// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/reduce.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using namespace belay::kernel;

constexpr std::size_t sizes[] = {0, 1, 15, 16, 17, 4095, 4096, 4097, 3 * 4096 + 5};

template <class T>
std::vector<T> wave(std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(std::sin(0.7 * static_cast<double>(i)) * 3);
  return values;
}

}  // namespace

TEST_CASE_TEMPLATE("sums, products and norms are what they should be at every size", T, float, double) {
  for (const std::size_t n : sizes) {
    const auto x = wave<T>(n);
    std::vector<T> y(n);
    long double total = 0, inner = 0, square = 0;
    for (std::size_t i = 0; i < n; ++i) {
      y[i] = static_cast<T>(0.5) - x[i];
      total += x[i];
      inner += static_cast<long double>(x[i]) * y[i];
      square += static_cast<long double>(x[i]) * x[i];
    }
    CHECK(std::abs(static_cast<double>(total) - sum(x.data(), n)) < 1e-10);
    CHECK(std::abs(static_cast<double>(inner) - dot(x.data(), y.data(), n)) < 1e-9);
    CHECK(sum_of_squares(x.data(), n) == doctest::Approx(static_cast<double>(square)).epsilon(1e-14));
    const double row_tolerance = sizeof(T) == 4 ? 2e-2 : 1e-9;
    CHECK(std::abs(static_cast<double>(row_sum(x.data(), n)) - static_cast<double>(total)) < row_tolerance);
    CHECK(std::abs(static_cast<double>(row_dot(x.data(), y.data(), n)) - static_cast<double>(inner)) < row_tolerance);
  }
}

TEST_CASE("the bits of a sum are those of the documented order") {
  const std::size_t n = 2 * sum_chunk + 37;
  const auto x = wave<float>(n);
  double total = 0;
  for (std::size_t first = 0; first < n; first += sum_chunk) {
    double lane[16] = {};
    for (std::size_t i = first; i < n && i < first + sum_chunk; ++i) {
      lane[(i - first) % 16] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    for (std::size_t l = 0; l < 8; ++l) lane[l] += lane[l + 8];
    for (std::size_t l = 0; l < 4; ++l) lane[l] += lane[l + 4];
    total += (lane[0] + lane[2]) + (lane[1] + lane[3]);
  }
  CHECK(sum_of_squares(x.data(), n) == total);
}

TEST_CASE("ranges cut at chunk boundaries give the same chunk sums, so the same norm") {
  const std::size_t n = 5 * sum_chunk + 100;
  const auto x = wave<float>(n);
  std::vector<double> whole(chunk_count(n)), cut(chunk_count(n));
  for_each_row(chunk_count(n), chunk_sums_of_squares<float>{x.data(), n, whole.data()});
  const std::size_t first = 2 * sum_chunk;
  for_each_row(2, chunk_sums_of_squares<float>{x.data(), first, cut.data()});
  for_each_row(chunk_count(n - first), chunk_sums_of_squares<float>{x.data() + first, n - first, cut.data() + 2});
  CHECK(whole == cut);
  double folded = 0;
  for (const double chunk : whole) folded += chunk;
  CHECK(folded == sum_of_squares(x.data(), n));
  CHECK(chunk_count(0) == 0);
}

TEST_CASE_TEMPLATE("the maximum and the largest magnitude are found wherever they lie", T, float, double) {
  CHECK(maximum_of<T>(nullptr, 0) == -std::numeric_limits<T>::infinity());
  CHECK(largest_magnitude<T>(nullptr, 0) == T(0));
  for (const std::size_t n : {1u, 15u, 16u, 33u}) {
    for (std::size_t at = 0; at < n; ++at) {
      std::vector<T> x(n, T(-2));
      x[at] = T(-1);
      CHECK(maximum_of(x.data(), n) == T(-1));
      x[at] = T(-7);
      CHECK(largest_magnitude(x.data(), n) == T(7));
      x[at] = std::numeric_limits<T>::quiet_NaN();
      CHECK(maximum_of(x.data(), n) == (n == 1 ? -std::numeric_limits<T>::infinity() : T(-2)));
    }
  }
}

TEST_CASE_TEMPLATE("one element that is not finite is found wherever it lies", T, float, double) {
  const T inf = std::numeric_limits<T>::infinity();
  for (const std::size_t n : sizes) {
    std::vector<T> x(n, std::numeric_limits<T>::max());
    CHECK(are_finite(x.data(), n));
    if (n == 0) continue;
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      for (const T bad : {inf, -inf, std::numeric_limits<T>::quiet_NaN()}) {
        x[at] = bad;
        CHECK_FALSE(are_finite(x.data(), n));
      }
      x[at] = std::numeric_limits<T>::denorm_min();
    }
  }
}
