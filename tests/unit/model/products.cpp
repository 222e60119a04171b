// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "model/products.hpp"

#include <doctest/doctest.h>

#include "belay/device/kit.hpp"
#include "unit/kernel/support/products.hpp"

TEST_CASE_TEMPLATE("a kit's product equals its definition for every reading, size and share of the old value", T, float,
                   double) {
  belay::host_kit<> kit;
  kit.use_products(model::products());
  test::check_products<T>([&](auto c, auto a, auto b, T alpha, T beta) {
    kit.product(belay::product_call<T>{c, a, b, alpha, beta});
  });
}

TEST_CASE_TEMPLATE("products over nothing do nothing, or scale", T, float, double) {
  belay::host_kit<> kit;
  kit.use_products(model::products());
  T values[4] = {1, 2, 3, 4};
  const belay::operand<T> c{values, 2, 2, 2};
  const belay::operand<const T> empty{values, 0, 2, 2};
  kit.product(belay::product_call<T>{{values, 0, 2, 2}, empty, c});
  kit.product(belay::product_call<T>{c, belay::transposed(empty), empty, 1, 1});
  for (std::size_t i = 0; i < 4; ++i) CHECK(values[i] == static_cast<T>(i + 1));
  kit.product(belay::product_call<T>{c, belay::transposed(empty), empty});
  for (T value : values) CHECK(value == T(0));
}
