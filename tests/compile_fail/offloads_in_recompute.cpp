// expect: offload that, with belay::offloads around the recompute
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A recomputed layer keeps its input alone: inside of it nothing would leave.
#include "support/layer.hpp"

void go(belay::offloaded_activations<belay::host_engine>& activations, doubling& layer) {
#ifdef BELAY_BROKEN
  belay::offloads away{layer, activations};
  belay::recompute lean{away};
#else
  belay::recompute lean{layer};
  belay::offloads away{lean, activations};
#endif
}
