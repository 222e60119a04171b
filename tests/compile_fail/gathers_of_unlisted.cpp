// expect: what a layer reads is gathered before its call: give it for_each_parameter.visit.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/gathers.hpp"

struct layer {
  belay::parameter<float> weight{{.name = "weight", .shape = {2, 2}}};
#ifndef BELAY_BROKEN
  void for_each_parameter(auto&& visit) { visit(weight); }
#endif
};
struct store {
  static constexpr std::uint32_t whole = belay::gather_order::nothing;
  template <class Layer>
  std::uint32_t gathers_for(Layer&) {
    return whole;
  }
};

void go(layer& one, store& all) { const belay::gathers wrapped{one, all}; }
