// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: `std::tuple`
// named by: g++, clang
#include <tuple>

#include "support/lost_handle.hpp"

namespace tuple {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  const std::tuple handles{belay::forward(scope, layer, x), 1};
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace tuple
