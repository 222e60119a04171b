// expect: ~saved.*handle
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The analysis looks into generic lambdas.
#include "support/layer.hpp"

void train(belay::host_engine& engine, doubling& layer, vector_in x) {
  belay::step step{engine};
  const auto body = [&](auto input) {
    auto handle = belay::forward(step, layer, input);
#ifdef BELAY_BROKEN
    static_cast<void>(handle.out());
#else
    auto dx = std::move(handle).backward(input);
#endif
  };
  body(x);
  auto outcome = std::move(step).commit();
}
