// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: `std::optional`
// named by: g++, clang
#include <optional>

#include "support/lost_handle.hpp"

namespace optional {

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  std::optional<handle_type> handle;
  handle.emplace(belay::forward(scope, layer, x));
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace optional
