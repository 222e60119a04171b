// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The gate of a mixture of experts: one logit for each row and expert. belay::route makes probabilities, the best
// experts and their weights of them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "belay/step/frame.hpp"
#include "model/parameters.hpp"
#include "model/shapes.hpp"

namespace model {

template <class T>
class router {
 public:
  using number = compute_type_t<T>;

  router(std::string name, std::size_t hidden, std::size_t experts)
      : gate_(matrix_spec(std::move(name), {experts, hidden})) {}

  [[nodiscard]] std::size_t experts() const { return gate_.shape()[0]; }

  /// Writes `logits` [rows, experts] of `x` [rows, hidden].
  void forward(auto& frame, view<const T, 2> x, view<number, 2> logits) {
    frame.product(logits, x, transposed(frame.read(gate_)));
  }

  /// Adds the gate's gradient, and adds the input's to `dx`.
  void backward(auto& frame, view<const T, 2> x, view<const T, 2> dlogits, view<number, 2> dx) {
    frame.product(frame.add_to(gate_), transposed(dlogits), x);
    frame.product(adding_to(dx), dlogits, frame.read(gate_));
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(gate_);
  }

 private:
  belay::parameter<T> gate_;
};

}  // namespace model
