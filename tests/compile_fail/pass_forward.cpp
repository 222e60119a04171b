// expect: a forward-only pass runs no backward: write belay::observe
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/layer.hpp"

double evaluate(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::forward_only pass{engine};
#ifdef BELAY_BROKEN
  auto y = belay::forward(pass, layer, x);
#else
  const auto y = belay::observe(pass, layer, x);
#endif
  return y.out()[0];
}
