// expect: the output of this layer is kept until its backward, which may read it
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/layer.hpp"

void go(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto h = belay::forward(step, layer, x);
#ifdef BELAY_BROKEN
  h.let_go();
#endif
  static_cast<void>(std::move(h).backward(x));
  auto outcome = std::move(step).commit();
}
