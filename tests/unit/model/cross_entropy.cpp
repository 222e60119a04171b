// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "model/cross_entropy.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "unit/model/support/numbers.hpp"

TEST_CASE_TEMPLATE("the cross-entropy is minus the logarithm of the target's probability, summed", T, float, double) {
  const auto logits = test::numbers(1).make<T>(belay::extents<3>{1, 4, 37}, 5);
  const std::int32_t values[] = {36, model::ignored, 0, 17};
  const belay::view<const std::int32_t, 2> targets(values, {1, 4});
  double expected = 0;
  for (std::size_t t : {0U, 2U, 3U}) {
    double sum = 0;
    for (std::size_t v = 0; v < 37; ++v) sum += std::exp(static_cast<double>(logits.view()(0, t, v)));
    expected -= std::log(std::exp(static_cast<double>(logits.view()(0, t, static_cast<std::size_t>(values[t])))) / sum);
  }
  const double tolerance = sizeof(T) == 4 ? 1e-6 : 1e-14;
  CHECK(model::cross_entropy<T>(logits.view(), targets) == doctest::Approx(expected).epsilon(tolerance));
}

TEST_CASE("equal logits cost the logarithm of the vocabulary, however large they are") {
  const test::tensor<float, 3> logits({1, 2, 256}, 1e4F);
  const std::int32_t values[] = {255, model::ignored};
  CHECK(model::cross_entropy<float>(logits.view(), {values, {1, 2}}) == doctest::Approx(std::log(256.0)));
}

TEST_CASE("a gradient's rows sum to zero, and those of ignored targets are zero") {
  auto logits = test::numbers(2).make<float>(belay::extents<3>{2, 2, 19}, 3);
  const std::int32_t values[] = {3, model::ignored, 0, 18};
  static_cast<void>(model::cross_entropy<float>(logits.view(), {values, {2, 2}}, 0.5, logits.view()));
  for (std::size_t i = 0; i < 4; ++i) {
    float sum = 0;
    float size = 0;
    for (std::size_t v = 0; v < 19; ++v) {
      sum += logits.values[i * 19 + v];
      size += std::abs(logits.values[i * 19 + v]);
    }
    CHECK(std::abs(sum) < 1e-6F);
    CHECK((size == 0) == (i == 1));
  }
}

TEST_CASE("no sequences cost nothing") {
  const test::tensor<float, 3> logits({0, 4, 8});
  CHECK(model::cross_entropy<float>(logits.view(), {nullptr, {0, 4}}) == 0);
}
