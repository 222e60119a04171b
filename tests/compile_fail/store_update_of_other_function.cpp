// expect: store.update calls f.name, values, gradients, first.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void train(run_type& run, store_type& store, const mesh_type& mesh) {
  belay::step step{run.engine(), store};
  auto outcome = std::move(step).commit(mesh, belay::samples{8});
  if (auto* ok = belay::committed(outcome)) {
#ifdef BELAY_BROKEN
    store.update(std::move(*ok),
                 [](const std::string&, std::span<float> values, std::span<float> gradients, std::size_t) {
#else
    store.update(std::move(*ok),
                 [](const std::string&, std::span<float> values, std::span<const float> gradients, std::size_t) {
#endif
                   for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 1e-3F * gradients[i];
                 });
  }
}
