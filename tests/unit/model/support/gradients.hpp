// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One check for every layer: its backward against central differences, for the input and for each parameter.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <utility>

#include "unit/model/support/frame.hpp"
#include "unit/model/support/numbers.hpp"

namespace test {

/// Nothing but the output counts.
struct no_extra_loss {
  template <class Residue>
  double operator()(const Residue&) const {
    return 0;
  }
};

/// The loss is sum(out * w) for fixed random w, plus `extra(residue)`; the check is relative to the largest
/// gradient of each tensor.
template <class Layer, class Extra = no_extra_loss>
void check_gradients(Layer& layer, memory<double>& parameters, belay::extents<3> shape, std::uint64_t seed,
                     double tolerance = 1e-6, Extra extra = {}) {
  numbers random(seed);
  auto x = random.make<double>(shape);
  tensor<double, 3> weights({0, 0, 0});
  const auto loss = [&] {
    frame call;
    auto residue = layer.forward(call, belay::view<const double, 3>(x.view()));
    if (weights.size() != residue.out.size()) weights = random.make<double>(residue.out.shape());
    return inner_product(residue.out, weights.view()) + extra(residue);
  };
  static_cast<void>(loss());

  frame call;
  auto dx = tensor<double, 3>(shape, std::numeric_limits<double>::quiet_NaN());
  auto residue = layer.forward(call, belay::view<const double, 3>(x.view()));
  const auto scope = call.scratch_scope();
  layer.backward(call, std::move(residue), belay::view<const double, 3>(weights.view()), dx.view());

  CHECK(difference_error(x.values, x.size(), dx.values, loss) < tolerance);
  for (auto& entry : parameters.entries()) {
    CAPTURE(entry.name);
    CHECK(difference_error(entry.value, entry.value.size(), entry.gradient, loss) < tolerance);
  }
}

}  // namespace test
