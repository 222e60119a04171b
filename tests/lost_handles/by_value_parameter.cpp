// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a by-value parameter that gets the result of a forward
// named by: belay_check_backward, run time
#include "support/lost_handle.hpp"

namespace by_value_parameter {

#ifdef BELAY_LOST
template <class Handle>
void ignore(Handle) {}
#endif

void run(const scope_type& scope, doubling& layer, tensor x, int) {
#ifdef BELAY_LOST
  ignore(belay::forward(scope, layer, x));
#else
  auto handle = belay::forward(scope, layer, x);
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace by_value_parameter
