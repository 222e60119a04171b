// expect: update consumes the token: store.update
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void train(run_type& run, store_type& store, const mesh_type& mesh) {
  const auto sgd = [](const std::string&, std::span<float> values, std::span<const float> gradients, std::size_t) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 1e-3F * gradients[i];
  };
  belay::step step{run.engine(), store};
  auto outcome = std::move(step).commit(mesh, belay::samples{8});
  if (auto* ok = belay::committed(outcome)) {
#ifdef BELAY_BROKEN
    store.update(*ok, sgd);
#else
    store.update(std::move(*ok), sgd);
#endif
  }
}
