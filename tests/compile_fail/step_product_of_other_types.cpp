// expect: the operands of a product are all float, all double, or float and narrower formats such as bf16
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step.hpp"

#ifdef BELAY_BROKEN
using other = double;
#else
using other = belay::bf16;
#endif

void go(belay::frame<belay::host_engine>& frame, belay::view<float, 2> c, belay::view<const float, 2> a,
        belay::view<const other, 2> b) {
  frame.product(c, a, b);
}
