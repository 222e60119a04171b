// expect: out.*consumed
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An output is gone with the backward.
#include "support/layer.hpp"

double train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x);
  auto dx = std::move(handle).backward(x);
  double last = 0;
#ifdef BELAY_BROKEN
  last = handle.out()[0];
#endif
  auto outcome = std::move(step).commit();
  return last;
}
