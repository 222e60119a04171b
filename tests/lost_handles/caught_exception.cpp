// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// way: an exception that is caught inside the step
// named by: run time
#include "support/lost_handle.hpp"

namespace caught_exception {

void run(const scope_type& scope, doubling& layer, tensor x, int one) {
  try {
#ifndef BELAY_LOST
    fail(one);
#endif
    auto handle = belay::forward(scope, layer, x);
#ifdef BELAY_LOST
    fail(one);
#endif
    static_cast<void>(std::move(handle).backward(x));
  } catch (const std::runtime_error&) {  // the batch is left out
  }
}

}  // namespace caught_exception
