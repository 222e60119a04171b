// expect: ~saved.*handle
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A named handle whose backward never comes.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x);
#ifdef BELAY_BROKEN
  static_cast<void>(handle.out());
#else
  auto dx = std::move(handle).backward(x);
#endif
  auto outcome = std::move(step).commit();
}
