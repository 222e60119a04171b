// expect: the backward need not name it
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void backward(belay::frame<belay::host_engine>& frame, [[maybe_unused]] belay::parameter<float>& learning,
              [[maybe_unused]] belay::parameter<float, belay::replicate, belay::frozen>& base) {
#ifdef BELAY_BROKEN
  frame.adds_nothing(base);
#else
  frame.adds_nothing(learning);
#endif
}
