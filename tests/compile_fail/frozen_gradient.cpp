// expect: a frozen parameter has no gradient
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/parameter.hpp"

float* read(const belay::parameter<float>& learning, const belay::parameter<float, belay::replicate, belay::frozen>& base) {
#ifdef BELAY_BROKEN
  return base.gradient();
#else
  static_cast<void>(base.value());
  return learning.gradient();
#endif
}
