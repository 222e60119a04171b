// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the cases share: a layer, the scope in which each loses a handle of it, and small functions that no compiler
// can look through.
#pragma once

#include <stdexcept>
#include <utility>

#include "belay/step.hpp"

struct doubling {
  struct residue {
    belay::view<double, 1> out;
  };
  [[nodiscard]] static const char* name() { return "doubling"; }
  template <class Frame>
  residue forward(Frame& frame, belay::view<const double, 1> x) {
    return {frame.template keep<double>(x.shape())};
  }
  template <class Frame>
  void backward(Frame&, residue&&, belay::view<const double, 1>, belay::view<double, 1>) {}
};

using engine_type = belay::host_engine;
using scope_type = belay::micro_batch_scope<engine_type>;
using tensor = belay::view<const double, 1>;
using handle_type = belay::saved<engine_type, doubling, tensor>;
using gradient_type = belay::gradient<engine_type, double, 1>;

/// True; for conditions in which a backward stands.
[[nodiscard]] inline bool used(const gradient_type& gradient) { return gradient.values().size() > 0; }

/// An error in the middle of a step, where `one` is 1.
inline void fail(int one) {
  if (one == 1) throw std::runtime_error("a batch that cannot be read");
}
