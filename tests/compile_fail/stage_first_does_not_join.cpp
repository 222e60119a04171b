// expect: what the network.s first\(\) gives is not what its layers take
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/pipeline.hpp"

struct network : stack<doubled> {
#ifdef BELAY_BROKEN
  flattened beginning;
#else
  doubled beginning;
#endif
  auto& first() { return beginning; }
};

void train(const step_type& step, pipeline_type& pipeline, belay::pipeline_stage<network>& stage,
           belay::view<const float, 3> inputs) {
  pipeline.run(step, stage, inputs, squared{});
}
