// expect: ~saved.*handle
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A backward that only one branch calls.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x, int kind) {
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x);
  if (kind == 0) {
    auto dx = std::move(handle).backward(x);
  }
#ifndef BELAY_BROKEN
  else {
    std::move(handle).discard("no gradient on this path");
  }
#endif
  auto outcome = std::move(step).commit();
}
