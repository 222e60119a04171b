// expect: this layer has no forward
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The other half of a layer.
#include "support/layer.hpp"

struct other_half {
  void backward(auto&, int, vector_in, belay::view<double, 1>) {}
};

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
#ifdef BELAY_BROKEN
  other_half wrong;
  auto handle = belay::forward(step, wrong, x);
#else
  auto handle = belay::forward(step, layer, x);
#endif
  static_cast<void>(std::move(handle).backward(x));
  auto outcome = std::move(step).commit();
}
