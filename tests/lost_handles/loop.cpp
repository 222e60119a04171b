// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a loop left before the backward
// named by: clang, run time
#include "support/lost_handle.hpp"

namespace loop {

void run(const scope_type& scope, doubling& layer, tensor x, int one) {
  for (int i = 0; i < 3; ++i) {
    auto handle = belay::forward(scope, layer, x);
#ifdef BELAY_LOST
    if (i == one) break;
#endif
    static_cast<void>(std::move(handle).backward(x));
  }
  static_cast<void>(one);
}

}  // namespace loop
