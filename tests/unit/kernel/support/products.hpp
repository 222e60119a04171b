// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Products against their definition: every reading of both operands, sizes around those of blocks and tiles, parts of
// wider memory, and every kind of share of the old value.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "belay/core/operand.hpp"

namespace test {

/// Numbers in [-1, 1] that repeat after a long while.
template <class T>
std::vector<T> product_values(std::size_t count, std::size_t seed) {
  std::vector<T> values(count);
  std::uint64_t state = 2 * seed + 1;
  for (T& value : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<T>(static_cast<double>(state >> 11U) / 4503599627370496.0 - 1.0);
  }
  return values;
}

template <class T>
T element(const belay::operand<const T>& m, std::size_t i, std::size_t j) {
  return m.as == belay::reading::as_is ? m.row(i)[j] : m.row(j)[i];
}

/// The largest error of c = 2 a b + beta `before`.
template <class T>
double product_error(const belay::operand<const T>& c, const belay::operand<const T>& a,
                     const belay::operand<const T>& b, const std::vector<T>& before, T beta) {
  double worst = 0;
  for (std::size_t i = 0; i < c.rows; ++i) {
    for (std::size_t j = 0; j < c.columns; ++j) {
      double sum = 0;
      for (std::size_t l = 0; l < a.width(); ++l)
        sum += static_cast<double>(element(a, i, l)) * static_cast<double>(element(b, l, j));
      const double expected = 2 * sum + static_cast<double>(beta) * static_cast<double>(before[i * c.stride + j]);
      const double error = std::abs(static_cast<double>(c.row(i)[j]) - expected);
      if (!(error <= worst)) worst = error <= 1 ? error : 1;  // NaN counts as 1
    }
    for (std::size_t j = c.columns; j < c.stride; ++j) CHECK(c.row(i)[j] == before[i * c.stride + j]);
  }
  return worst;
}

template <class T>
void check_products(auto multiply) {
  for (std::size_t m : {1U, 7U, 25U, 149U}) {
    for (std::size_t n : {1U, 5U, 33U, 259U}) {
      for (std::size_t k : {1U, 3U, 64U, 131U}) {
        const auto left = product_values<T>((m + 3) * (k + 3), 1), right = product_values<T>((k + 3) * (n + 3), 2);
        for (int way = 0; way < 4; ++way) {
          using operand = belay::operand<const T>;
          const operand a = way % 2 == 0 ? operand{left.data() + 2, m, k, k + 3}
                                         : belay::transposed(operand{left.data() + 2, k, m, m + 3});
          const operand b = way / 2 == 0 ? operand{right.data() + 2, k, n, n + 3}
                                         : belay::transposed(operand{right.data() + 2, n, k, k + 3});
          for (T beta : {T(0), T(1), T(0.5)}) {
            const auto before = product_values<T>(m * (n + 1), 3);
            auto values = before;
            // An old value that is not read may be anything.
            if (beta == T(0)) values[(m - 1) * (n + 1) + n - 1] = std::numeric_limits<T>::quiet_NaN();
            const belay::operand<T> c{values.data(), m, n, n + 1};
            multiply(c, a, b, T(2), beta);
            CAPTURE(m);
            CAPTURE(n);
            CAPTURE(k);
            CAPTURE(way);
            REQUIRE(product_error<T>(c, a, b, before, beta) <
                    static_cast<double>(std::numeric_limits<T>::epsilon()) * 8 * static_cast<double>(k));
          }
        }
      }
    }
  }
}

}  // namespace test
