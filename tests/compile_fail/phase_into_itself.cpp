// expect: this rank is in that phase already
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <utility>

#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/phase_switch.hpp"

using run_type = belay::run;

void evaluate(run_type& run, const belay::mesh& mesh) {
  belay::phase_switch phases{run, mesh};
  auto evaluating = phases.to_eval(phases.begin());
#ifdef BELAY_BROKEN
  auto again = phases.to_eval(std::move(evaluating));
#else
  auto again = phases.to_train(std::move(evaluating));
#endif
  static_cast<void>(again);
}
