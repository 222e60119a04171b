// expect: a placement says once what the ranks of an axis hold
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/parameter.hpp"

#ifdef BELAY_BROKEN
using placement = belay::placed<belay::shard<0, belay::axis::expert>, belay::shard<1, belay::axis::expert>>;
#else
using placement = belay::placed<belay::shard<0, belay::axis::expert>, belay::shard<1, belay::axis::tensor>>;
#endif
float read(const belay::parameter<float, placement>& p) { return *p.value(); }
