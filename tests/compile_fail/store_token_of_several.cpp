// expect: the step has no store, or several
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void train(run_type& run, store_type& one, store_type& two, const mesh_type& mesh, optimizer_type& first,
           [[maybe_unused]] optimizer_type& second) {
  belay::step step{run.engine(), one, two};
  auto outcome = std::move(step).commit(mesh, belay::samples{8});
  if (auto* ok = belay::committed(outcome)) {
#ifdef BELAY_BROKEN
    first.apply(std::move(*ok), {.learning_rate = 1e-3});
#else
    first.apply(ok->part(one), {.learning_rate = 1e-3});
    second.apply(ok->part(two), {.learning_rate = 1e-3});
#endif
  }
}
