// expect: apply consumes the token
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// However the update is named, the right call is taken, and the wrong one is told what it lacks.
#include "support/store.hpp"

belay::update rate_of(double number) { return {.learning_rate = 1e-3 / number}; }

void train(run_type& run, store_type& store, const mesh_type& mesh, optimizer_type& optimizer) {
  belay::update with{.learning_rate = 1e-3, .clip = 1.0};
  const auto committed = [&](auto&& apply) {
    belay::step step{run.engine(), store};
    auto outcome = std::move(step).commit(mesh, belay::samples{8});
    if (auto* ok = belay::committed(outcome)) apply(*ok);
  };
#ifdef BELAY_BROKEN
  committed([&](auto& ok) { optimizer.apply(ok, with); });
#else
  committed([&](auto& ok) { optimizer.apply(std::move(ok), {.learning_rate = 1e-3}); });
  committed([&](auto& ok) { optimizer.apply(std::move(ok), with); });
  committed([&](auto& ok) { optimizer.apply(std::move(ok), std::as_const(with)); });
  committed([&](auto& ok) { optimizer.apply(std::move(ok), rate_of(1)); });
  committed([&](auto& ok) { optimizer.apply(std::move(ok), with, belay::where::current()); });
  committed([&](auto& ok) { optimizer.apply(ok.part(store), with); });
  committed([&](auto& ok) { optimizer.apply(ok.part(store), rate_of(2)); });
#endif
}
