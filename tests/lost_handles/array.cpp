// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: `std::array`
// named by: belay_check_backward, run time
#include <array>

#include "support/lost_handle.hpp"

namespace array {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  const std::array<handle_type, 1> handles{belay::forward(scope, layer, x)};
  static_cast<void>(handles[0].out());
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace array
