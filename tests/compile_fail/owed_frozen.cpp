// expect: a backward is owed of trainable parameters
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/owed.hpp"
#include "support/store.hpp"

void call(belay::step<belay::host_engine>& step, [[maybe_unused]] belay::parameter<float>& learning,
          [[maybe_unused]] belay::parameter<float, belay::replicate, belay::frozen>& base) {
#ifdef BELAY_BROKEN
  belay::owe(step, "head", {base}).discharge();
#else
  belay::owe(step, "head", {learning}).discharge();
#endif
}
