// expect: belay::placed<...> of these
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/parameter.hpp"

#ifdef BELAY_BROKEN
using placement = belay::placed<belay::placed<belay::shard<0>>>;
#else
using placement = belay::placed<belay::shard<0>>;
#endif
float read(const belay::parameter<float, placement>& p) { return *p.value(); }
