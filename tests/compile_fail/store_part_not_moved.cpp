// expect: apply consumes the token
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void train(run_type& run, store_type& store, const mesh_type& mesh, optimizer_type& optimizer) {
  belay::step step{run.engine(), store};
  auto outcome = std::move(step).commit(mesh, belay::samples{8});
  belay::update with{.learning_rate = 1e-3};
  if (auto* ok = belay::committed(outcome)) {
    auto part = ok->part(store);
#ifdef BELAY_BROKEN
    optimizer.apply(part, with);
#else
    optimizer.apply(std::move(part), with);
#endif
  }
}
