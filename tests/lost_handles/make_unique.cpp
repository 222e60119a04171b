// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: `std::make_unique`
// named by: g++, clang
#include <memory>

#include "support/lost_handle.hpp"

namespace make_unique {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  const auto handle = std::make_unique<handle_type>(belay::forward(scope, layer, x));
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace make_unique
