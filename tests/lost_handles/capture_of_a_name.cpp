// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a lambda that captures a named handle
// named by: g++, clang
#include "support/lost_handle.hpp"

namespace capture_of_a_name {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
  auto handle = belay::forward(scope, layer, x);
#ifdef BELAY_LOST
  const auto later = [handle = std::move(handle)] {};
  later();
#else
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace capture_of_a_name
