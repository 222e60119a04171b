// expect: ~step.*step
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A step that is neither committed nor cut off.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x);
  auto dx = std::move(handle).backward(x);
#ifndef BELAY_BROKEN
  auto outcome = std::move(step).commit();
#endif
}
