// expect: forward does not take this input
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A layer says what it takes.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
#ifdef BELAY_BROKEN
  const belay::view<const float, 2> other{nullptr, {1, 1}};
  auto handle = belay::forward(step, layer, other);
#else
  auto handle = belay::forward(step, layer, x);
#endif
  static_cast<void>(std::move(handle).backward(x));
  auto outcome = std::move(step).commit();
}
