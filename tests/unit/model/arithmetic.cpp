// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "model/arithmetic.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "unit/model/support/numbers.hpp"

TEST_CASE("the exponential is that of the standard library to float's precision") {
  double worst = 0;
  for (float x = -87; x < 88; x += 0.0137F) {
    const auto values = model::exponential(model::lanes<float>{} + x);
    const double expected = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(values[0]) - expected) / expected);
  }
  CHECK(worst < 1.8e-7);
  CHECK(model::exponential(model::lanes<float>{})[0] == 1.0F);
}

TEST_CASE("the exponential of what was masked far away is as good as nothing") {
  CHECK(model::exponential(model::lanes<float>{} - 1e30F)[0] < 1e-37F);
  CHECK(model::exponential(model::lanes<float>{} - std::numeric_limits<float>::infinity())[0] < 1e-37F);
}

TEST_CASE("the logistic function stays between 0 and 1 for any input") {
  for (float x : {-1e9F, -100.0F, 0.0F, 100.0F, 1e9F}) {
    const float y = model::logistic<float>(model::lanes<float>{} + x)[0];
    CHECK(y >= 0);
    CHECK(y <= 1);
  }
  CHECK(model::logistic<float>(model::lanes<float>{})[0] == 0.5F);
}

TEST_CASE_TEMPLATE("sums and maxima see every element of a row of any length, and none beyond", T, float, double) {
  for (std::size_t count = 1; count < 70; ++count) {
    auto row = test::numbers(count).make<T>(belay::extents<1>{count});
    row.values[count] = T(1000);
    for (std::size_t i = 0; i < count; ++i) row.values[i] -= T(2);
    double sum = 0;
    T largest = row.values[0];
    for (std::size_t i = 0; i < count; ++i) {
      sum += static_cast<double>(row.values[i]);
      largest = std::max(largest, row.values[i]);
    }
    const T* data = row.values.data();
    const T found = model::sum_over<T>(count, [=](auto at) { return at.load(data); });
    CHECK(static_cast<double>(found) == doctest::Approx(sum).epsilon(1e-5));
    CHECK(model::largest_of(data, count) == largest);
  }
}
