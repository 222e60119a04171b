// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A network for benchmarks of optimizers: matrices whose backwards write gradients, and cost little else.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "belay/belay.hpp"

namespace bench {

struct matrix {
  static constexpr std::size_t width = 1024;

  belay::parameter<float> weight;
  matrix(std::size_t number, std::size_t rows)
      : weight({"matrix." + std::to_string(number),
                {rows, width},
                belay::initial::normal(0.02),
                belay::weight_decay::yes}) {}
  void for_each_parameter(auto&& visit) { visit(weight); }
  struct residue {
    belay::view<float, 1> out;
  };
  residue forward(auto& frame, belay::view<const float, 1> x) { return {belay::keep<float>(frame, x.shape())}; }
  void backward(auto& frame, residue&&, belay::view<const float, 1> dout, belay::view<float, 1>) {
    const belay::view<float, 2> gradient = frame.add_to(weight);
    frame.run([gradient, dout] {
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient.data()[i] += 1e-3F * static_cast<float>(i % 7) + dout(0);
    });
  }
};

/// Sixteen of them, of so many parameters together: a multiple of 16 x 1024.
struct network {
  static constexpr std::size_t matrices = 16;

  std::deque<matrix> all;
  explicit network(std::size_t parameters) {
    for (std::size_t i = 0; i < matrices; ++i) all.emplace_back(i, parameters / matrices / matrix::width);
  }
  void for_each_parameter(auto&& visit) {
    for (matrix& one : all) one.for_each_parameter(visit);
  }

  /// Forward and backward of all. `number` outlives the step.
  void write_gradients(const auto& step, const float& number) {
    const belay::view<const float, 1> one{&number, {1}};
    for (matrix& each : all) {
      auto y = belay::forward(step, each, belay::constant(one));
      std::move(y).backward(one);
    }
  }
};

}  // namespace bench
