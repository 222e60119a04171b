// expect: deleted|copy
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// There is one handle for one obligation.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x);
#ifdef BELAY_BROKEN
  auto second = handle;
#endif
  auto dx = std::move(handle).backward(x);
  auto outcome = std::move(step).commit();
}
