// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A layer of one weight, and an engine to run it on.
#pragma once

#include <cstddef>

#include "belay/kernel.hpp"
#include "belay/step.hpp"

namespace scaling_bench {

// y = w * x; keeps x by reference and its own output.
struct scaling {
  double weight = 2;
  double gradient = 0;

  struct residue {
    belay::view<double, 3> out;
    belay::view<const double, 3> x;
  };

  // What the weight's gradient adds: a kernel of one index.
  struct weight_gradient {
    belay::view<const double, 3> x, dout;
    double* sum;
    BELAY_HD void operator()(std::size_t) const { *sum += belay::kernel::dot(x.data(), dout.data(), x.size()); }
  };

  [[nodiscard]] static const char* name() { return "scaling"; }

  residue forward(auto& frame, belay::view<const double, 3> x) {
    residue r{belay::keep<double>(frame, x.shape()), x};
    auto noise = belay::scratch<double>(frame, x.shape());
    frame.each(x.size(), belay::kernel::fill<double>{noise.data(), 0});
    frame.each(x.size(), belay::kernel::multiple<double>{weight, x.data(), r.out.data()});
    return r;
  }

  void backward(auto& frame, residue&& r, belay::view<const double, 3> dout, belay::view<double, 3> dx) {
    frame.each(dout.size(), belay::kernel::multiple<double>{weight, dout.data(), dx.data()});
    frame.each(1, weight_gradient{r.x, dout, &gradient});
  }
};

struct bench {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 16}, meter};
  double values[6] = {1, 2, 3, 4, 5, 6};
  belay::view<const double, 3> x{values, {1, 2, 3}};
};

}  // namespace scaling_bench
