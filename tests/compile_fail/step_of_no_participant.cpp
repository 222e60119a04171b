// expect: a step is made of an engine and of what takes part in it
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void train(run_type& run, [[maybe_unused]] store_type& store, [[maybe_unused]] network& net) {
#ifdef BELAY_BROKEN
  belay::step step{run.engine(), net};
#else
  belay::step step{run.engine(), store};
#endif
  step.cut_off();
}
