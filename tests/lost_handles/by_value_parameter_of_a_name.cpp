// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a by-value parameter that gets a named handle
// named by: g++, clang
#include "support/lost_handle.hpp"

namespace by_value_parameter_of_a_name {

#ifdef BELAY_LOST
template <class Handle>
void ignore(Handle) {}
#endif

void run(const scope_type& scope, doubling& layer, tensor x, int) {
  auto handle = belay::forward(scope, layer, x);
#ifdef BELAY_LOST
  ignore(std::move(handle));
#else
  static_cast<void>(std::move(handle).backward(x));
#endif
}

}  // namespace by_value_parameter_of_a_name
