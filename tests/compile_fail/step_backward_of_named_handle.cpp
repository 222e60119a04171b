// expect: write std::move\(handle\).backward
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Backward consumes: on a named handle it wants std::move.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x);
#ifdef BELAY_BROKEN
  handle.backward(x);
#endif
  auto dx = std::move(handle).backward(x);
  auto outcome = std::move(step).commit();
}
