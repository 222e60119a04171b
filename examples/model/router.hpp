// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The gate of a mixture of experts: one logit for each row and expert. belay::route makes probabilities, the best
// experts and their weights of them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "belay/core/view.hpp"
#include "model/matrix.hpp"
#include "model/parameters.hpp"

namespace model {

template <class T>
class router {
 public:
  router(std::string name, std::size_t hidden, std::size_t experts)
      : gate_(matrix_spec(std::move(name), {experts, hidden})) {}

  [[nodiscard]] std::size_t experts() const { return gate_.shape()[0]; }

  /// Writes `logits` [rows, experts] of `x` [rows, hidden].
  template <class Frame>
  void forward(Frame& frame, view<const T, 2> x, view<T, 2> logits) {
    frame.run([this, x, logits] { product(matrix<T>(logits), x, weights().transposed()); });
  }

  /// Adds the gate's gradient, and adds the input's to `dx`.
  template <class Frame>
  void backward(Frame& frame, view<const T, 2> x, view<const T, 2> dlogits, view<T, 2> dx) {
    frame.run([this, x, dlogits, dx] {
      const matrix<T> gradient(gate_.gradient(), gate_.shape()[0], gate_.shape()[1]);
      add_product(gradient, matrix<const T>(dlogits).transposed(), x);
      add_product(matrix<T>(dx), dlogits, weights());
    });
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(gate_);
  }

 private:
  [[nodiscard]] matrix<const T> weights() const { return {gate_.value(), gate_.shape()[0], gate_.shape()[1]}; }

  belay::parameter<T> gate_;
};

}  // namespace model
