// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a structured binding
// named by: belay_check_backward, run time
#include "support/lost_handle.hpp"

namespace structured_binding {

#ifdef BELAY_LOST
struct numbered {
  handle_type handle;
  int number;
};
#endif

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  const auto [handle, number] = numbered{belay::forward(scope, layer, x), 1};
  static_cast<void>(handle.out());
  static_cast<void>(number);
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace structured_binding
