// expect: assignment of read-only|read-only variable is not assignable|cannot assign to variable
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An optimizer of one's own over `gradients()` would let replicas part: the values are gathered by `store.update`.
#include "support/store.hpp"

void train(run_type& run, store_type& store, const mesh_type& mesh) {
  belay::step step{run.engine(), store};
  auto outcome = std::move(step).commit(mesh, belay::samples{8});
  if (auto* ok = belay::committed(outcome)) {
#ifdef BELAY_BROKEN
    for (const auto& range : ok->gradients())
      for (std::size_t i = 0; i < range.count; ++i) range.value[i] -= 1e-3F * range.gradient[i];
    std::move(*ok).discard();
#else
    double sum = 0;
    for (const auto& range : ok->gradients())
      for (std::size_t i = 0; i < range.count; ++i) sum += static_cast<double>(range.gradient[i]);
    static_cast<void>(sum);
    store.update(std::move(*ok),
                 [](const std::string&, std::span<float> values, std::span<const float> gradients, std::size_t) {
                   for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 1e-3F * gradients[i];
                 });
#endif
  }
}
