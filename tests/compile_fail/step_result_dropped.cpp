// expect: a forward owes a backward
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Nobody keeps the result of a forward.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
#ifdef BELAY_BROKEN
  belay::forward(step, layer, x);
#else
  auto handle = belay::forward(step, layer, x);
  auto dx = std::move(handle).backward(x);
#endif
  auto outcome = std::move(step).commit();
}
