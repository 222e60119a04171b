// expect: a placement shards a dimension that no tensor has
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/parameter.hpp"

#ifdef BELAY_BROKEN
using placement = belay::shard<4>;
#else
using placement = belay::shard<3>;
#endif
float read(const belay::parameter<float, placement>& p) { return *p.value(); }
