// expect: belay::zero<0> .nothing is divided., <1> .optimizer state., <2> .gradients too. or <3> .parameters
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

void train(run_type& run, const mesh_type& mesh, network& net) {
#ifdef BELAY_BROKEN
  belay::parameter_store store{run, mesh, net, belay::zero<4>{}};
#else
  belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
#endif
}
