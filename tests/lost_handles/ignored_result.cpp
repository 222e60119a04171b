// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: an ignored result
// named by: g++, clang
#include "support/lost_handle.hpp"

namespace ignored_result {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  belay::forward(scope, layer, x);
#else
  static_cast<void>(belay::forward(scope, layer, x).backward(x));
#endif
}

}  // namespace ignored_result
