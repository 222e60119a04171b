// expect: its maker captures nothing
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A kernel that may run later reads what it was given, and no memory that nobody holds.
#include "support/store.hpp"

struct add {
  const float* terms;
  float* sums;
  void operator()(std::size_t i) const { sums[i] += terms[i]; }
};

void backward(belay::frame<belay::host_engine>& frame, belay::parameter<float>& bias,
              belay::view<const float, 1> terms) {
#ifdef BELAY_BROKEN
  frame.each_into(frame.add_to(bias), terms.size(), [=](float* sums) { return add{terms.data(), sums}; });
#else
  frame.each_into(
      frame.add_to(bias), terms.size(),
      [](float* sums, belay::view<const float, 1> read) {
        return add{read.data(), sums};
      },
      terms);
#endif
}
