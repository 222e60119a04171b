// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A layer of one weight, and an engine to run it on.
#pragma once

#include <cstddef>

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

  [[nodiscard]] static const char* name() { return "scaling"; }

  template <class Frame>
  residue forward(Frame& frame, belay::view<const double, 3> x) {
    residue r{frame.template keep<double>(x.shape()), x};
    auto noise = frame.template scratch<double>(x.shape());
    frame.run([&, noise] {
      for (std::size_t i = 0; i < x.size(); ++i) r.out.data()[i] = weight * x.data()[i], noise.data()[i] = 0;
    });
    return r;
  }

  template <class Frame>
  void backward(Frame& frame, residue&& r, belay::view<const double, 3> dout, belay::view<double, 3> dx) {
    frame.run([&] {
      for (std::size_t i = 0; i < dout.size(); ++i) {
        dx.data()[i] = weight * dout.data()[i];
        gradient += r.x.data()[i] * dout.data()[i];
      }
    });
  }
};

struct bench {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 16}, meter};
  double values[6] = {1, 2, 3, 4, 5, 6};
  belay::view<const double, 3> x{values, {1, 2, 3}};
};

}  // namespace scaling_bench
