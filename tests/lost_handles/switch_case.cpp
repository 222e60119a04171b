// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a `switch` of which one case has the backward
// named by: clang, run time
#include "support/lost_handle.hpp"

namespace switch_case {

void run(const scope_type& scope, doubling& layer, tensor x, int one) {
  auto handle = belay::forward(scope, layer, x);
  switch (one) {
    case 0: static_cast<void>(std::move(handle).backward(x)); break;
#ifndef BELAY_LOST
    default: std::move(handle).discard("no gradient on this way");
#endif
  }
}

}  // namespace switch_case
