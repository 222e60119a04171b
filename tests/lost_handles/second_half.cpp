// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: the first half of a backward without the second
// named by: clang, run time
#include "support/lost_handle.hpp"

namespace second_half {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
  auto half = belay::forward(scope, layer, x).backward_input(x);
  static_cast<void>(half.input_gradient());
#ifndef BELAY_LOST
  std::move(half).weights();
#endif
}

}  // namespace second_half
