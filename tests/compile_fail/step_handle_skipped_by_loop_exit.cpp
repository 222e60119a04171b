// expect: ~saved.*handle
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A loop left with an open handle.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x, int count) {
  belay::step step{engine};
  for (int i = 0; i < count; ++i) {
    auto handle = belay::forward(step, layer, x);
#ifdef BELAY_BROKEN
    if (i == 3) break;
#endif
    auto dx = std::move(handle).backward(x);
  }
  auto outcome = std::move(step).commit();
}
