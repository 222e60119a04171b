// expect: one owed backward names 16 parameters at most
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/owed.hpp"
#include "support/store.hpp"

void call(belay::step<belay::host_engine>& step, belay::parameter<float>& p) {
  belay::owe(step, "block", {p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p}).discharge();
#ifdef BELAY_BROKEN
  belay::owe(step, "block", {p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p, p}).discharge();
#endif
}
