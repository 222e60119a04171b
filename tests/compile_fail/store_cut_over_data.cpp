// expect: a store's parameters are cut over the expert axis, the tensor axis or both
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

#ifdef BELAY_BROKEN
using cut = belay::shard<0>;  // ZeRO divides what ranks along data replicate
#else
using cut = belay::shard<0, belay::axis::tensor>;
#endif

struct cut_network {
  belay::parameter<float, cut> weight;
  explicit cut_network(const mesh_type& mesh) : weight({"weight", {2, 2}}, mesh) {}
  void for_each_parameter(auto&& visit) { visit(weight); }
};

void train(run_type& run, const mesh_type& mesh, cut_network& net) {
  belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
}
