// expect: is committed over the mesh, with the divisor
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void train(run_type& run, store_type& store, [[maybe_unused]] const mesh_type& mesh) {
  belay::step step{run.engine(), store};
#ifdef BELAY_BROKEN
  static_cast<void>(std::move(step).commit(mesh));
#else
  static_cast<void>(std::move(step).commit(mesh, belay::samples{8}));
#endif
}
