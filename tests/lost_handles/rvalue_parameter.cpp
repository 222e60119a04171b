// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a `T&&` parameter that is ignored
// named by: belay_check_backward, run time
#include "support/lost_handle.hpp"

namespace rvalue_parameter {

#ifdef BELAY_LOST
template <class Handle>
void ignore(Handle&&) {}
#endif

void run(const scope_type& scope, doubling& layer, tensor x, int) {
  auto handle = belay::forward(scope, layer, x);
#ifdef BELAY_LOST
  ignore(std::move(handle));
#else
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace rvalue_parameter
