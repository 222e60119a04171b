// expect: this step has no participants, so its commit has no gradients to reduce: name the store
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The first thing that a copier of an example forgets.
#include "support/store.hpp"

void train(run_type& run, store_type& store, const mesh_type& mesh, optimizer_type& optimizer) {
#ifdef BELAY_BROKEN
  static_cast<void>(store);
  belay::step step{run.engine()};
#else
  belay::step step{run.engine(), store};
#endif
  auto outcome = std::move(step).commit(mesh, belay::samples{64});
#ifndef BELAY_BROKEN
  if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
#else
  static_cast<void>(belay::committed(outcome));
  static_cast<void>(optimizer);
#endif
}
