// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two layers whose activations may leave the device: one that overwrites what it has kept, and one that reads its
// output and what it has remembered.
#pragma once

#include <cstddef>

#include "belay/kernel.hpp"
#include "belay/step.hpp"

namespace offloaded_layers {

inline constexpr std::size_t rows = 8, width = 16;
using matrix = belay::view<const double, 2>;

// y = w * x + x^2 / 8, with x^2 kept, and overwritten in the backward.
struct curved {
  double weight = 1.25;
  double gradient = 0;

  struct residue {
    belay::view<double, 2> out;
    matrix x;
    belay::view<double, 2> squares;
  };
  struct squared {
    const double* x;
    double *squares, *out, weight;
    BELAY_HD void operator()(std::size_t i) const {
      squares[i] = x[i] * x[i];
      out[i] = weight * x[i] + squares[i] / 8;
    }
  };
  // dx = dy (w + x / 4); the squares become what the weight's gradient adds.
  struct differentiated {
    const double *x, *dy;
    double *squares, *dx, weight;
    BELAY_HD void operator()(std::size_t i) const {
      dx[i] = dy[i] * (weight + squares[i] / x[i] / 4);
      squares[i] = dy[i] * x[i];
    }
  };
  struct sum {
    const double* values;
    std::size_t count;
    double* total;
    BELAY_HD void operator()(std::size_t) const {
      for (std::size_t i = 0; i < count; ++i) *total += values[i];
    }
  };

  using output_in_backward = belay::unread;
  [[nodiscard]] static const char* name() { return "curved"; }
  residue forward(auto& frame, matrix x) {
    const residue r{belay::keep<double>(frame, x.shape()), x, belay::keep<double>(frame, x.shape())};
    frame.each(x.size(), squared{x.data(), r.squares.data(), r.out.data(), weight});
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<double, 2> dx) {
    frame.each(dx.size(), differentiated{r.x.data(), dy.data(), r.squares.data(), dx.data(), weight});
    frame.each(1, sum{r.squares.data(), dx.size(), &gradient});
  }
};

// y = x / 2, and the backward reads its output and what it has remembered.
struct halved {
  struct residue {
    belay::view<double, 2> out;
    belay::view<double, 1> factor;
  };
  struct differentiated {
    const double *y, *dy, *factor;
    double* dx;
    BELAY_HD void operator()(std::size_t i) const { dx[i] = dy[i] * *factor + y[i] / 1024; }
  };
  [[nodiscard]] static const char* name() { return "halved"; }
  residue forward(auto& frame, matrix x) {
    const residue r{belay::keep<double>(frame, x.shape()), belay::remember<double>(frame, {1})};
    if (!frame.replaying()) frame.each(1, belay::kernel::fill<double>{r.factor.data(), 0.5});
    frame.each(x.size(), belay::kernel::multiple<double>{0.5, x.data(), r.out.data()});
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<double, 2> dx) {
    frame.each(dx.size(), differentiated{r.out.data(), dy.data(), r.factor.data(), dx.data()});
  }
};

// What a run has in a tier between its steps: in the device the findings of its engine.
template <class Run>
std::size_t lasting_bytes(const Run&, belay::tier of) {
  return of == belay::tier::device ? Run::engine_type::findings_bytes : 0;
}

}  // namespace offloaded_layers
