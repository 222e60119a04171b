// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/product.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "belay/core/dtype.hpp"
#include "unit/kernel/support/products.hpp"

TEST_CASE_TEMPLATE("the blocked loop equals the definition for every reading, size and share of the old value", T,
                   float, double) {
  test::check_products<T>([](auto c, auto a, auto b, T alpha, T beta) {
    belay::kernel::blocked_product<T>::run({c, a, b, alpha, beta});
  });
}

TEST_CASE_TEMPLATE("a product over nothing scales", T, float, double) {
  T values[4] = {1, 2, 3, 4};
  const belay::operand<T> c{values, 2, 2, 2};
  const belay::operand<const T> nothing{values, 2, 0, 1}, no_rows{values, 0, 2, 2};
  belay::kernel::blocked_product<T>::run({c, nothing, no_rows, T(1), T(2)});
  CHECK(values[3] == T(8));
  values[0] = std::numeric_limits<T>::quiet_NaN();
  belay::kernel::blocked_product<T>::run({c, nothing, no_rows});
  for (T value : values) CHECK(value == T(0));
}

TEST_CASE_TEMPLATE("a row of a product has the same bits however many rows there are", T, float, double) {
  constexpr std::size_t rows = 31, columns = 37, depth = 131;
  const auto left = test::product_values<T>(rows * depth, 1), right = test::product_values<T>(depth * columns, 2);
  const auto before = test::product_values<T>(rows * columns, 3);
  const belay::operand<const T> b{right.data(), depth, columns, columns};
  for (std::size_t count = 1; count < rows; ++count) {
    auto whole = before, part = before;
    belay::kernel::blocked_product<T>::run(
        {{whole.data(), rows, columns, columns}, {left.data(), rows, depth, depth}, b, T(0.3), T(0.7)});
    belay::kernel::blocked_product<T>::run(
        {{part.data(), count, columns, columns}, {left.data(), count, depth, depth}, b, T(0.3), T(0.7)});
    whole.resize(count * columns);
    part.resize(count * columns);
    CHECK(whole == part);
  }
}

namespace {

using belay::bf16;
using belay::operand;
using belay::transposed;

constexpr belay::host_products blocked;
// Of floats alone, as a BLAS has: operands are converted for them panel by panel.
constexpr belay::host_products of_floats{belay::kernel::blocked_product<float>::run};

template <class T>
std::vector<T> values(std::size_t count, std::size_t seed) {
  std::vector<T> out;
  for (float value : test::product_values<float>(count, seed)) out.push_back(static_cast<T>(value));
  return out;
}

// c = 2 a b + beta c beside the same in double; one rounding of the result, and that of sums in float.
template <class C, class A, class B>
void check(const belay::host_products& by, std::size_t m, std::size_t n, std::size_t k, int way, float beta) {
  const auto left = values<A>((m + 3) * (k + 3), 1);
  const auto right = values<B>((k + 3) * (n + 3), 2);
  const auto before = values<C>(m * (n + 1), 3);
  auto result = before;
  const operand<const A> a = way % 2 == 0 ? operand<const A>{left.data() + 2, m, k, k + 3}
                                          : transposed(operand<const A>{left.data() + 2, k, m, m + 3});
  const operand<const B> b = way / 2 == 0 ? operand<const B>{right.data() + 2, k, n, n + 3}
                                          : transposed(operand<const B>{right.data() + 2, n, k, k + 3});
  if (beta == 0) result[0] = static_cast<C>(std::nanf(""));
  belay::kernel::mixed_product(by, belay::product_call<C, A, B>{{result.data(), m, n, n + 1}, a, b, 2, beta});
  const double rounding = belay::kernel::real<C> ? 0 : 0x1p-8;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::size_t l = 0; l < k; ++l)
        sum += static_cast<double>(test::element(a, i, l)) * static_cast<double>(test::element(b, l, j));
      const double expected = 2 * sum + (beta == 0 ? 0 : beta * static_cast<double>(before[i * (n + 1) + j]));
      const double got = static_cast<double>(result[i * (n + 1) + j]);
      const double allowed = rounding * std::abs(expected) + 1e-6 * static_cast<double>(k + 1);
      if (!(std::abs(got - expected) <= allowed)) ++wrong;
    }
    if (!(result[i * (n + 1) + n] == before[i * (n + 1) + n])) ++wrong;
  }
  INFO(m << " x " << n << " over " << k << ", reading " << way << ", beta " << beta);
  CHECK(wrong == 0);
}

template <class C, class A, class B>
void check_all(const belay::host_products& by) {
  for (int way = 0; way < 4; ++way) {
    for (float beta : {0.0F, 1.0F, 0.5F}) {
      for (std::size_t k : {1U, 131U, 300U}) {
        check<C, A, B>(by, 1, 1, k, way, beta);
        check<C, A, B>(by, 7, 33, k, way, beta);
      }
      check<C, A, B>(by, 390, 259, 5, way, beta);  // more than a tile
    }
  }
}

}  // namespace

TEST_CASE("operands of any mixture equal the definition, summed in float and rounded once") {
  check_all<bf16, bf16, bf16>(blocked);
  check_all<float, bf16, bf16>(blocked);
  check_all<bf16, float, bf16>(blocked);
  check_all<float, bf16, float>(blocked);
  check_all<bf16, float, float>(blocked);
}

TEST_CASE("and through panels, for a function that reads one type") {
  check_all<bf16, bf16, bf16>(of_floats);
  check_all<float, float, bf16>(of_floats);
  check_all<bf16, float, float>(of_floats);
}

TEST_CASE("a sum over a long depth is rounded at its end, not on the way") {
  constexpr std::size_t depth = 4096;  // 1 + 4095 / 512: in bf16 each further part would be lost
  std::vector<bf16> a(depth, bf16(1.0F)), b(depth, bf16(1.0F / 512));
  b[0] = bf16(1.0F);
  bf16 c{};
  belay::kernel::mixed_product(
      blocked, belay::product_call<bf16>{{&c, 1, 1, 1}, {a.data(), 1, depth, depth}, {b.data(), depth, 1, 1}});
  CHECK(static_cast<float>(c) == static_cast<float>(bf16(1.0F + 4095.0F / 512)));
}
