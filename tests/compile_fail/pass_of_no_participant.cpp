// expect: a pass is made of an engine and of what takes part in it
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void evaluate(run_type& run, [[maybe_unused]] network& net) {
#ifdef BELAY_BROKEN
  const belay::forward_only pass{run.engine(), net};
#else
  const belay::forward_only pass{run.engine()};
#endif
}
