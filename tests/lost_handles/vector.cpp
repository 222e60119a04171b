// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: `std::vector`
// named by: g++, clang
#include <vector>

#include "support/lost_handle.hpp"

namespace vector {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  std::vector<handle_type> handles;
  handles.push_back(belay::forward(scope, layer, x));
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace vector
