// expect: backward does not fit its forward
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A backward takes what its forward has returned, and gives the gradient of what that was given.
#include "support/layer.hpp"

struct halves {
  struct residue {
    belay::view<double, 1> out;
  };
  residue forward(auto& frame, vector_in x) { return {frame.template keep<double>(x.shape())}; }
#ifdef BELAY_BROKEN
  void backward(auto&, residue&&, vector_in) {}  // without the gradient of an input that has one
#else
  void backward(auto&, residue&&, vector_in, belay::view<double, 1>) {}
#endif
};

void train(belay::host_engine& engine, halves& layer, vector_in x) {
  belay::step step{engine};
  auto one = belay::forward(step, layer, x);
  static_cast<void>(std::move(one).backward(x));
  auto outcome = std::move(step).commit();
}
