// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a `goto` out of the scope
// named by: clang, run time
#include "support/lost_handle.hpp"

namespace goto_out {

void run(const scope_type& scope, doubling& layer, tensor x, int one) {
  {
    auto handle = belay::forward(scope, layer, x);
#ifdef BELAY_LOST
    if (one == 1) goto out;
#endif
    static_cast<void>(std::move(handle).backward(x));
  }
#ifdef BELAY_LOST
out:
#endif
  static_cast<void>(one);
}

}  // namespace goto_out
