// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a name declared as `auto&&`
// named by: belay_check_backward, run time
#include "support/lost_handle.hpp"

namespace forwarding_reference {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  auto&& handle = belay::forward(scope, layer, x);
  static_cast<void>(handle.out());
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace forwarding_reference
