// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a member of an aggregate
// named by: belay_check_backward, run time
#include "support/lost_handle.hpp"

namespace aggregate_member {

#ifdef BELAY_LOST
struct numbered {
  handle_type handle;
  int number;
};
#endif

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  const numbered kept{belay::forward(scope, layer, x), 1};
  static_cast<void>(kept.number);
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace aggregate_member
