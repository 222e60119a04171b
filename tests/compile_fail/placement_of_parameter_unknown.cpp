// expect: placement is belay::replicate or belay::shard
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/parameter.hpp"

#ifdef BELAY_BROKEN
float read(const belay::parameter<float, int>& p) { return *p.value(); }
#else
float read(const belay::parameter<float, belay::shard<1>>& p) { return *p.value(); }
#endif
