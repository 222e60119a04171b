// expect: this layer has no forward
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Also an observed forward takes a layer.
#include "support/layer.hpp"

void look(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
#ifdef BELAY_BROKEN
  int number = 1;
  auto seen = belay::observe(step, number, x);
#else
  auto seen = belay::observe(step, layer, x);
#endif
  auto outcome = std::move(step).commit();
}
