// expect: a parameter is belay::trainable or belay::frozen
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/parameter.hpp"

#ifdef BELAY_BROKEN
float read(const belay::parameter<float, belay::replicate, belay::shard<0>>& p) { return *p.value(); }
#else
float read(const belay::parameter<float, belay::shard<0>>& p) { return *p.value(); }
#endif
