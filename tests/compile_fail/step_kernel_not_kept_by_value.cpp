// expect: a kernel is kept by value until it has run
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What owns its numbers cannot wait in a queue.
#include <vector>

#include "belay/step.hpp"

struct from_vector {
#ifdef BELAY_BROKEN
  std::vector<float> in;
#else
  const float* in;
#endif
  float* out;
  void operator()(std::size_t i) const { out[i] = in[i]; }
};

void go(belay::frame<belay::host_engine>& frame, const from_vector& kernel) { frame.each(4, kernel); }
