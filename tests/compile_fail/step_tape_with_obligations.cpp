// expect: must return an empty tape
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The typed tape: every compiler sees the missing backward.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  step.run([&](auto tape) {
    auto one = std::move(tape).forward(layer, x);
#ifdef BELAY_BROKEN
    return one;
#else
    return std::move(std::move(one).backward(x).rest);
#endif
  });
  auto outcome = std::move(step).commit();
}
