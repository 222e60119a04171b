// expect: a frozen parameter has no gradient to add to
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void backward(belay::frame<belay::host_engine>& frame, [[maybe_unused]] belay::parameter<float>& learning,
              [[maybe_unused]] belay::parameter<float, belay::replicate, belay::frozen>& base) {
#ifdef BELAY_BROKEN
  frame.add_to(base);
#else
  static_cast<void>(frame.add_to(learning));
  static_cast<void>(frame.read(base));
#endif
}
