// expect: ~saved.*handle
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An early return with an open handle.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x, int kind) {
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x);
#ifdef BELAY_BROKEN
  if (kind == 0) return;
#endif
  static_cast<void>(kind);
  auto dx = std::move(handle).backward(x);
  auto outcome = std::move(step).commit();
}
