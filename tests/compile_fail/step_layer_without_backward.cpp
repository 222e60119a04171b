// expect: this layer has no backward
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What forward takes is a layer with both halves.
#include "support/layer.hpp"

struct half_a_layer {
  struct residue {
    belay::view<double, 1> out;
  };
  template <class Frame>
  residue forward(Frame& frame, vector_in x) {
    return {frame.template keep<double>(x.shape())};
  }
};

void train(belay::host_engine& engine, half_a_layer& layer, vector_in x) {
  belay::step step{engine};
#ifdef BELAY_BROKEN
  auto handle = belay::forward(step, layer, x);
#else
  auto seen = belay::observe(step, layer, x);
#endif
  auto outcome = std::move(step).commit();
}
