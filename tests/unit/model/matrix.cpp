// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "model/matrix.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "unit/model/support/numbers.hpp"

namespace {

template <class T>
struct operand {
  operand(std::size_t rows, std::size_t columns, model::matrix<const T> (*read)(model::matrix<const T>), unsigned seed)
      : wide(test::numbers(seed).make<T>(belay::extents<2>{rows, columns + 3})),
        block(read(model::matrix<const T>(wide.values.data() + 2, rows, columns, columns + 3))) {}
  [[nodiscard]] T at(std::size_t i, std::size_t j) const {
    return block.read_as == model::matrix<const T>::reading::as_is ? block.row(i)[j] : block.row(j)[i];
  }
  test::tensor<T, 2> wide;
  model::matrix<const T> block;
};

template <class T>
void check_products(auto multiply) {
  const auto as_is = [](model::matrix<const T> m) { return m; };
  const auto transposed = [](model::matrix<const T> m) { return m.transposed(); };
  for (std::size_t m : {1U, 7U, 25U, 75U}) {
    for (std::size_t n : {1U, 5U, 33U, 130U}) {
      for (std::size_t k : {1U, 3U, 64U, 131U}) {
        for (int way = 0; way < 4; ++way) {
          const operand<T> a = way % 2 == 0 ? operand<T>(m, k, as_is, 1) : operand<T>(k, m, transposed, 1);
          const operand<T> b = way / 2 == 0 ? operand<T>(k, n, as_is, 2) : operand<T>(n, k, transposed, 2);
          for (T beta : {T(0), T(1), T(0.5)}) {
            auto c = test::numbers(3).make<T>(belay::extents<2>{m, n + 1});
            const auto before = c;
            // An old value that is not read may be anything.
            if (beta == T(0)) c.view()(m - 1, n - 1) = std::numeric_limits<T>::quiet_NaN();
            multiply(model::matrix<T>(c.values.data(), m, n, n + 1), a.block, b.block, T(2), beta);
            double worst = 0;
            for (std::size_t i = 0; i < m; ++i) {
              for (std::size_t j = 0; j < n; ++j) {
                double sum = 0;
                for (std::size_t l = 0; l < k; ++l) {
                  sum += static_cast<double>(a.at(i, l)) * static_cast<double>(b.at(l, j));
                }
                const double expected = 2 * sum + static_cast<double>(beta) * static_cast<double>(before.view()(i, j));
                const double error = std::abs(static_cast<double>(c.view()(i, j)) - expected);
                worst = error <= worst ? worst : error;
                if (!(error <= 1)) worst = 1;  // NaN
              }
              CHECK(c.view()(i, n) == before.view()(i, n));
            }
            CAPTURE(m);
            CAPTURE(n);
            CAPTURE(k);
            CAPTURE(way);
            REQUIRE(worst < static_cast<double>(std::numeric_limits<T>::epsilon()) * 8 * static_cast<double>(k));
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("a product equals its definition for every reading, size and share of the old value", T, float,
                   double) {
  check_products<T>([](auto c, auto a, auto b, T alpha, T beta) { model::product(c, a, b, alpha, beta); });
}

TEST_CASE_TEMPLATE("the blocked loop equals the definition, whether or not there is a BLAS", T, float, double) {
  check_products<T>(
      [](auto c, auto a, auto b, T alpha, T beta) { model::blocked_product<T>::run(c, a, b, alpha, beta); });
}

TEST_CASE_TEMPLATE("products over nothing do nothing, or scale", T, float, double) {
  T values[4] = {1, 2, 3, 4};
  const model::matrix<T> c(values, 2, 2);
  model::product(model::matrix<T>(values, 0, 2), model::matrix<T>(values, 0, 2), c);
  model::add_product(c, model::matrix<T>(values, 0, 2).transposed(), model::matrix<T>(values, 0, 2));
  for (std::size_t i = 0; i < 4; ++i) CHECK(values[i] == static_cast<T>(i + 1));
  model::blocked_product<T>::run(c, model::matrix<T>(values, 2, 0, 1), model::matrix<T>(values, 0, 2), T(1), T(0));
  for (T value : values) CHECK(value == T(0));
}
