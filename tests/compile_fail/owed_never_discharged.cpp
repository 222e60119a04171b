// expect: ~owed.*owed
// compilers: clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/owed.hpp"
#include "support/store.hpp"

void call(const belay::step<belay::host_engine>& step, belay::parameter<float>& p) {
  auto owed = belay::owe(step, "head", {p});
#ifndef BELAY_BROKEN
  std::move(owed).discharge();
#endif
}
