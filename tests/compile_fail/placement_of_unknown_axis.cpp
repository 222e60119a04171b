// expect: a placement names an axis of belay::axis whose ranks hold parts of one tensor
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/parameter.hpp"

#ifdef BELAY_BROKEN
using placement = belay::shard<0, belay::axis::pipeline>;
#else
using placement = belay::shard<0, belay::axis::tensor>;
#endif
float read(const belay::parameter<float, placement>& p) { return *p.value(); }
