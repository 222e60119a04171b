// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/product.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>

#include "unit/kernel/support/products.hpp"

TEST_CASE_TEMPLATE("the blocked loop equals the definition for every reading, size and share of the old value", T,
                   float, double) {
  test::check_products<T>([](auto c, auto a, auto b, T alpha, T beta) {
    belay::kernel::blocked_products::product<T>(c, a, b, alpha, beta);
  });
}

TEST_CASE_TEMPLATE("a product over nothing scales", T, float, double) {
  T values[4] = {1, 2, 3, 4};
  const belay::operand<T> c{values, 2, 2, 2};
  const belay::operand<const T> nothing{values, 2, 0, 1}, no_rows{values, 0, 2, 2};
  belay::kernel::blocked_products::product<T>(c, nothing, no_rows, T(1), T(2));
  CHECK(values[3] == T(8));
  values[0] = std::numeric_limits<T>::quiet_NaN();
  belay::kernel::blocked_products::product<T>(c, nothing, no_rows, T(1), T(0));
  for (T value : values) CHECK(value == T(0));
}

TEST_CASE_TEMPLATE("a row of a product has the same bits however many rows there are", T, float, double) {
  constexpr std::size_t rows = 31, columns = 37, depth = 131;
  const auto left = test::product_values<T>(rows * depth, 1), right = test::product_values<T>(depth * columns, 2);
  const auto before = test::product_values<T>(rows * columns, 3);
  const belay::operand<const T> b{right.data(), depth, columns, columns};
  for (std::size_t count = 1; count < rows; ++count) {
    auto whole = before, part = before;
    belay::kernel::blocked_products::product<T>({whole.data(), rows, columns, columns},
                                                {left.data(), rows, depth, depth}, b, T(0.3), T(0.7));
    belay::kernel::blocked_products::product<T>({part.data(), count, columns, columns},
                                                {left.data(), count, depth, depth}, b, T(0.3), T(0.7));
    whole.resize(count * columns);
    part.resize(count * columns);
    CHECK(whole == part);
  }
}
