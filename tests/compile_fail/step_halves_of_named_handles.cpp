// expect: write std::move\(handle\).backward_input
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The first half of a backward consumes the handle.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x);
#ifdef BELAY_BROKEN
  handle.backward_input(x);
#endif
  auto half = std::move(handle).backward_input(x);
  std::move(half).weights();
  auto outcome = std::move(step).commit();
}
