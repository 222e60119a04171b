// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: a backward behind `&&` or `||`
// named by: clang, run time
#include "support/lost_handle.hpp"

namespace short_circuit {

void run(const scope_type& scope, doubling& layer, tensor x, int one) {
  auto handle = belay::forward(scope, layer, x);
#ifdef BELAY_LOST
  const bool done = one != 1 && used(std::move(handle).backward(x));
#else
  const bool done = used(std::move(handle).backward(x)) && one != 1;
#endif
  static_cast<void>(done);
}

}  // namespace short_circuit
