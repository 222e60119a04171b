// expect: what this layer's forward returns holds something that is neither a view nor a number
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A residue whose addresses are not known cannot come back to another place.
#include <vector>

#include "support/layer.hpp"

struct remembering {
  struct residue {
    belay::view<double, 1> out;
#ifdef BELAY_BROKEN
    std::vector<float> copy;
#endif
  };
  residue forward(auto& frame, vector_in x) { return {frame.template keep<double>(x.shape())}; }
  void backward(auto&, residue&&, vector_in, belay::view<double, 1>) {}
};

void go(belay::host_engine& engine, belay::offloaded_activations<belay::host_engine>& activations, vector_in x) {
  belay::step step{engine};
  remembering layer;
  belay::offloads away{layer, activations};
  auto h = belay::forward(step, away, x);
  static_cast<void>(std::move(h).backward(x));
  auto outcome = std::move(step).commit();
}
