// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/elementwise.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "belay/core/dtype.hpp"

namespace {

using namespace belay;
using namespace belay::kernel;

template <class T>
std::vector<T> ramp(std::size_t count, double first, double step) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(first + step * static_cast<double>(i));
  return values;
}

constexpr std::size_t sizes[] = {0, 1, 15, 16, 17, 1000, 1023};

}  // namespace

TEST_CASE_TEMPLATE("every element gets its sum, product and multiple, at every size", T, float, double) {
  for (const std::size_t n : sizes) {
    const auto a = ramp<T>(n, -3, 0.25);
    const auto b = ramp<T>(n, 7, -0.5);
    std::vector<T> out(n + 1, T(-99)), y = b, z = a;
    for_each_index(n, add<T>{a.data(), b.data(), out.data()});
    for (std::size_t i = 0; i < n; ++i) REQUIRE(out[i] == a[i] + b[i]);
    for_each_index(n, multiply<T>{a.data(), b.data(), out.data()});
    for (std::size_t i = 0; i < n; ++i) REQUIRE(out[i] == a[i] * b[i]);
    for_each_index(n, add_scaled<T>{a.data(), T(2), b.data(), out.data()});
    for (std::size_t i = 0; i < n; ++i) REQUIRE(out[i] == a[i] + 2 * b[i]);
    for_each_index(n, axpy<T>{T(0.5), a.data(), y.data()});
    for (std::size_t i = 0; i < n; ++i) REQUIRE(y[i] == b[i] + a[i] / 2);
    for_each_index(n, kernel::scale<T>{T(4), z.data()});
    for (std::size_t i = 0; i < n; ++i) REQUIRE(z[i] == 4 * a[i]);
    for_each_index(n, kernel::fill<T>{out.data(), T(3)});
    for (std::size_t i = 0; i < n; ++i) REQUIRE(out[i] == T(3));
    CHECK(out[n] == T(-99));  // nothing beyond the range is touched
  }
}

TEST_CASE("a copy converts by rounding to nearest") {
  const std::vector<float> in = {1.0f, 1.00390625f, 1.01171875f, -3.0e38f, 1e-40f};
  std::vector<bf16> narrow(in.size());
  std::vector<float> back(in.size());
  for_each_index(in.size(), kernel::copy<float, bf16>{in.data(), narrow.data()});
  for_each_index(in.size(), kernel::copy<bf16, float>{narrow.data(), back.data()});
  for (std::size_t i = 0; i < in.size(); ++i) CHECK(back[i] == static_cast<float>(bf16(in[i])));
  CHECK(back[1] == 1.0f);
  CHECK(back[2] == 1.015625f);
}

TEST_CASE_TEMPLATE("the gate and its backward agree with finite differences", T, float, double) {
  const std::size_t n = 203;
  const auto gate = ramp<T>(n, -9, 0.09);
  const auto up = ramp<T>(n, 2, -0.03);
  const auto dout = ramp<T>(n, -1, 0.01);
  std::vector<T> out(n), dgate(n), dup(n);
  for_each_index(n, silu_gate<T>{gate.data(), up.data(), out.data()});
  for_each_index(n, silu_gate_backward<T>{gate.data(), up.data(), dout.data(), dgate.data(), dup.data()});
  const double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-8;
  for (std::size_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(gate[i]), u = static_cast<double>(up[i]), d = static_cast<double>(dout[i]);
    const auto f = [](double x, double y) { return x / (1 + std::exp(-x)) * y; };
    CHECK(std::abs(static_cast<double>(out[i]) - f(g, u)) < tolerance);
    CHECK(std::abs(static_cast<double>(dgate[i]) - d * (f(g + 1e-5, u) - f(g - 1e-5, u)) / 2e-5) < tolerance);
    CHECK(std::abs(static_cast<double>(dup[i]) - d * f(g, 1)) < tolerance);
  }
  auto g = gate, u = up;  // in place gives the same bits
  for_each_index(n, silu_gate_backward<T>{g.data(), u.data(), dout.data(), g.data(), u.data()});
  CHECK(std::memcmp(g.data(), dgate.data(), n * sizeof(T)) == 0);
  CHECK(std::memcmp(u.data(), dup.data(), n * sizeof(T)) == 0);
}

TEST_CASE_TEMPLATE("an element's bits do not depend on where a range was cut", T, float, double) {
  const std::size_t n = 131;
  const auto gate = ramp<T>(n, -5, 0.0771);
  const auto up = ramp<T>(n, 1, 0.0313);
  std::vector<T> whole(n), pieces(n);
  for_each_index(n, silu_gate<T>{gate.data(), up.data(), whole.data()});
  for (std::size_t first = 0, size = 1; first < n; first += size, size = size % 7 + 1) {
    if (first + size > n) size = n - first;
    for_each_index(size, silu_gate<T>{gate.data() + first, up.data() + first, pieces.data() + first});
  }
  CHECK(std::memcmp(whole.data(), pieces.data(), n * sizeof(T)) == 0);
}
