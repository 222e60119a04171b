// expect: a step is divided by belay::samples
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void train(run_type& run, store_type& store, const mesh_type& mesh) {
  belay::step step{run.engine(), store};
#ifdef BELAY_BROKEN
  static_cast<void>(std::move(step).commit(mesh, 8));
#else
  static_cast<void>(std::move(step).commit(mesh, belay::local_targets{8}));
#endif
}
