// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A pipeline of one stage, and networks that fit it or do not.
#pragma once

#include <vector>

#include "belay/comm/rehearsal.hpp"
#include "belay/parallel.hpp"
#include "belay/train/loss.hpp"

using hidden_view = belay::view<const float, 2>;
using engine_type = belay::host_engine;
using step_type = belay::step<engine_type>;
using pipeline_type = belay::pipeline<float, 2>;

struct doubled {
  struct residue {
    belay::view<float, 2> out;
  };
  residue forward(auto& frame, hidden_view x) { return {belay::keep<float>(frame, x.shape())}; }
  void backward(auto&, residue&&, hidden_view, belay::view<float, 2>) {}
};
struct flattened {
  struct residue {
    belay::view<float, 1> out;
  };
  residue forward(auto& frame, hidden_view x) { return {belay::keep<float>(frame, {x.size()})}; }
  void backward(auto&, residue&&, belay::view<const float, 1>, belay::view<float, 2>) {}
};

template <class Layer>
struct stack {
  std::vector<Layer> all;
  std::vector<Layer>& layers() { return all; }
};

struct squared {
  hidden_view target;
  auto operator()(const auto& scope, hidden_view y) const { return belay::squared_error(scope, y, target); }
};
