// expect: the store's parameters are of another type than its precision
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

struct wide_network {
  belay::parameter<double> weight{"weight", {2, 2}};
  void for_each_parameter(auto&& visit) { visit(weight); }
};

void train(run_type& run, const mesh_type& mesh, wide_network& net) {
#ifdef BELAY_BROKEN
  belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
#else
  belay::parameter_store store{run, mesh, net, belay::zero<1>{}, belay::precision<double>{}};
#endif
}
