// expect: an owed backward is discharged
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/owed.hpp"
#include "support/store.hpp"

void call(const belay::step<belay::host_engine>& step, belay::parameter<float>& p) {
#ifdef BELAY_BROKEN
  belay::owe(step, "head", {p});
#else
  belay::owe(step, "head", {p}).discharge();
#endif
}
