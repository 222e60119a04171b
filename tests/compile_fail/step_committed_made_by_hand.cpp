// expect: private
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Only a step can say that it was committed.
#include "support/layer.hpp"

void apply(const belay::committed_step&);

void cheat() {
#ifdef BELAY_BROKEN
  apply(belay::committed_step{1});
#endif
}
