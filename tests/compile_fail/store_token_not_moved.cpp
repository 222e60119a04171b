// expect: apply consumes the token
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void train(run_type& run, store_type& store, const mesh_type& mesh, optimizer_type& optimizer) {
  belay::step step{run.engine(), store};
  auto outcome = std::move(step).commit(mesh, belay::samples{8});
  if (auto* ok = belay::committed(outcome)) {
#ifdef BELAY_BROKEN
    optimizer.apply(*ok, {.learning_rate = 1e-3});
#else
    optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
#endif
  }
}
