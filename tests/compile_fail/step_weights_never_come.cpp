// expect: ~weight_half.*half
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The gradient of the input is used, and the weights are forgotten.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto half = belay::forward(step, layer, x).backward_input(x);
  auto dx = half.input_gradient();
#ifndef BELAY_BROKEN
  std::move(half).weights();
#endif
  auto outcome = std::move(step).commit();
}
