// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: an early return
// named by: clang, run time
#include "support/lost_handle.hpp"

namespace early_return {

void run(const scope_type& scope, doubling& layer, tensor x, int one) {
  auto handle = belay::forward(scope, layer, x);
#ifdef BELAY_LOST
  if (one == 1) return;
#endif
  static_cast<void>(one);
  static_cast<void>(std::move(handle).backward(x));
}

}  // namespace early_return
