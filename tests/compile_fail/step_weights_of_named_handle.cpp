// expect: write std::move\(half\).weights
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// So does the second half.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto half = belay::forward(step, layer, x).backward_input(x);
#ifdef BELAY_BROKEN
  half.weights();
#endif
  std::move(half).weights();
  auto outcome = std::move(step).commit();
}
