// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: `new`
// named by: g++, clang
#include "support/lost_handle.hpp"

namespace new_expression {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  auto* handle = new handle_type(belay::forward(scope, layer, x));
  delete handle;
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace new_expression
