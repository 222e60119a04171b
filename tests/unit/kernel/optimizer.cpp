// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/optimizer.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "belay/core/dtype.hpp"

using namespace belay::kernel;

TEST_CASE_TEMPLATE("AdamW follows its formula over many steps", T, float, double) {
  const std::size_t n = 131;
  const adamw_settings settings{.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1};
  std::vector<T> value(n), gradient(n), m(n), v(n);
  std::vector<double> want(n), wm(n), wv(n);
  for (std::size_t i = 0; i < n; ++i)
    want[i] = static_cast<double>(value[i] = static_cast<T>(std::cos(0.1 * double(i))));
  for (std::uint64_t step = 1; step <= 50; ++step) {
    for (std::size_t i = 0; i < n; ++i) {
      gradient[i] = static_cast<T>(std::sin(0.3 * double(i) + 0.7 * double(step)) * (i == 5 ? 0 : 1));
    }
    for_each_index(n,
                   adamw<T>{value.data(), gradient.data(), m.data(), v.data(), adamw_at_step<T>(settings, step, 0.25)});
    for (std::size_t i = 0; i < n; ++i) {
      const double g = static_cast<double>(gradient[i]) * 0.25;
      wm[i] = 0.9 * wm[i] + 0.1 * g;
      wv[i] = 0.95 * wv[i] + 0.05 * g * g;
      const double m_hat = wm[i] / (1 - std::pow(0.9, double(step)));
      const double v_hat = wv[i] / (1 - std::pow(0.95, double(step)));
      want[i] -= 3e-3 * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * want[i]);
    }
  }
  const double tolerance = sizeof(T) == 4 ? 3e-6 : 1e-13;
  for (std::size_t i = 0; i < n; ++i) CHECK(std::abs(static_cast<double>(value[i]) - want[i]) < tolerance);
}

TEST_CASE("the update of an element does not depend on how the range was cut over ranks") {
  const std::size_t n = 1000;
  std::vector<float> value(n), gradient(n), m(n, 0.01f), v(n, 0.001f);
  for (std::size_t i = 0; i < n; ++i) {
    value[i] = std::cos(static_cast<float>(i));
    gradient[i] = std::sin(static_cast<float>(i));
  }
  auto value2 = value, m2 = m, v2 = v;
  const auto at = adamw_at_step<float>({}, 7, 0.3);
  for_each_index(n, adamw<float>{value.data(), gradient.data(), m.data(), v.data(), at});
  const std::size_t cuts[] = {0, 1, 334, 667, 999, 1000};
  for (std::size_t c = 0; c + 1 < std::size(cuts); ++c) {
    const std::size_t f = cuts[c];
    for_each_index(cuts[c + 1] - f,
                   adamw<float>{value2.data() + f, gradient.data() + f, m2.data() + f, v2.data() + f, at});
  }
  CHECK(std::memcmp(value.data(), value2.data(), n * sizeof(float)) == 0);
  CHECK(std::memcmp(m.data(), m2.data(), n * sizeof(float)) == 0);
  CHECK(std::memcmp(v.data(), v2.data(), n * sizeof(float)) == 0);
}

TEST_CASE("an update that asks for lines ahead has the bits of one that does not") {
  struct update {
    adamw<float> one;
    void operator()(std::size_t i) const noexcept { one(i); }
  };
  static_assert(prefetching<adamw<float>> && !prefetching<update>);
  for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{4097}}) {
    CAPTURE(n);
    std::vector<float> value(n), gradient(n), m(n, 0.01F), v(n, 0.001F);
    for (std::size_t i = 0; i < n; ++i) {
      value[i] = std::cos(static_cast<float>(i));
      gradient[i] = std::sin(static_cast<float>(i));
    }
    auto value2 = value, m2 = m, v2 = v;
    const auto at = adamw_at_step<float>({}, 7, 0.3);
    for_each_index(n, adamw<float>{value.data(), gradient.data(), m.data(), v.data(), at});
    for_each_index(n, update{{value2.data(), gradient.data(), m2.data(), v2.data(), at}});
    CHECK(value == value2);
    CHECK(m == m2);
    CHECK(v == v2);
  }
}

TEST_CASE("the bias corrections of a late step are those of the powers") {
  const auto at = adamw_at_step<double>({.learning_rate = 1, .beta1 = 0.9, .beta2 = 0.95}, 77);
  CHECK(at.step_size == doctest::Approx(1 / (1 - std::pow(0.9, 77))).epsilon(1e-14));
  CHECK(at.root_correction == doctest::Approx(1 / std::sqrt(1 - std::pow(0.95, 77))).epsilon(1e-14));
}

TEST_CASE("a value that is narrower follows a master copy, and a value that was written is the new master") {
  using belay::bf16;
  const auto scalars = belay::kernel::adamw_at_step<float>({.learning_rate = 1e-4, .decay = 0}, 1);
  bf16 value(1.0F);
  float master = 0, first = 0, second = 0, gradient = 0.5F;
  const belay::kernel::adamw_of_master<float, bf16> update{&value, {&master, &gradient, &first, &second, scalars}};
  update(0);
  CHECK(master == doctest::Approx(1.0F - 1e-4F));  // begins at the value, not at 0
  CHECK(static_cast<float>(value) == 1.0F);        // the step is less than bf16 can show
  for (int i = 0; i < 60; ++i) update(0);
  CHECK(master < 0.9965F);
  CHECK(static_cast<float>(value) == static_cast<float>(bf16(master)));
  CHECK(static_cast<float>(value) < 1.0F);  // many small steps add up
  value = bf16(3.0F);                       // an import
  update(0);
  CHECK(master == doctest::Approx(3.0F).epsilon(1e-3));
}
