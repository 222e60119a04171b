// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a lambda that captures the result of a forward
// named by: belay_check_backward, run time
#include "support/lost_handle.hpp"

namespace capture_of_a_result {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  const auto later = [handle = belay::forward(scope, layer, x)] {};
  later();
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace capture_of_a_result
