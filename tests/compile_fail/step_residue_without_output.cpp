// expect: has no view `out`
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The output is what the residue calls out.
#include "support/layer.hpp"

struct unnamed_output {
  struct residue {
#ifdef BELAY_BROKEN
    belay::view<double, 1> result;
#else
    belay::view<double, 1> out;
#endif
  };
  residue forward(auto& frame, vector_in x) { return {frame.template keep<double>(x.shape())}; }
  void backward(auto&, residue&&, vector_in, belay::view<double, 1>) {}
};

void look(belay::host_engine& engine, unnamed_output& layer, vector_in x) {
  belay::step step{engine};
  auto seen = belay::observe(step, layer, x);
  auto outcome = std::move(step).commit();
}
