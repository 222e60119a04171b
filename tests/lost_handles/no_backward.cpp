// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a name, and no backward
// named by: clang, run time
#include "support/lost_handle.hpp"

namespace no_backward {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
  auto handle = belay::forward(scope, layer, x);
#ifdef BELAY_LOST
  static_cast<void>(handle.out());
#else
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace no_backward
