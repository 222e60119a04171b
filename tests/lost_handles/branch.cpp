// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a branch that skips the backward
// named by: clang, run time
#include "support/lost_handle.hpp"

namespace branch {

void run(const scope_type& scope, doubling& layer, tensor x, int one) {
  auto handle = belay::forward(scope, layer, x);
  if (one != 1) {
    static_cast<void>(std::move(handle).backward(x));
  }
#ifndef BELAY_LOST
  else {
    std::move(handle).discard("no gradient on this way");
  }
#endif
}

}  // namespace branch
