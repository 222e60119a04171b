// expect: backward.*consumed
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A handle is used once.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x);
  auto dx = std::move(handle).backward(x);
#ifdef BELAY_BROKEN
  auto again = std::move(handle).backward(x);
#endif
  auto outcome = std::move(step).commit();
}
