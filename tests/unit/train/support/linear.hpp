// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A layer that multiplies by its weight, as a user would write it over the frame's products.
#pragma once

#include "belay/core/view.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/step.hpp"

namespace train_bench {

struct linear {
  belay::parameter<float> weight;
  struct residue {
    belay::view<float, 2> out;
    belay::view<const float, 2> x;
  };

  residue forward(auto& frame, belay::view<const float, 2> x) {
    auto y = belay::keep<float>(frame, {x.extent(0), weight.extent(0)});
    frame.product(y, x, transposed(frame.read(weight)));
    return {y, x};
  }
  void backward(auto& frame, residue&& r, belay::view<const float, 2> dy, belay::view<float, 2> dx) {
    frame.product(frame.add_to(weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(weight));
  }
  void for_each_parameter(auto&& visit) { visit(weight); }
};

}  // namespace train_bench
