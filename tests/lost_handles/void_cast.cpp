// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a result cast to `void`
// named by: clang, run time
#include "support/lost_handle.hpp"

namespace void_cast {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  static_cast<void>(belay::forward(scope, layer, x));
#else
  static_cast<void>(belay::forward(scope, layer, x).backward(x));
#endif
}

}  // namespace void_cast
