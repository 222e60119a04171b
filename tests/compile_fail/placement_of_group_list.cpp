// expect: a belay::placed<...> of these is over a mesh and not over a group
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/sharded.hpp"

struct group {
  int rank() const;
  int size() const;
};

#ifdef BELAY_BROKEN
using placement = belay::placed<belay::shard<0>, belay::shard<1, belay::axis::tensor>>;
#else
using placement = belay::shard<0>;
#endif
float* read(const belay::sharded<float, placement, group>& t) { return t.local().data(); }
