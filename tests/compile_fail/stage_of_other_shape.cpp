// expect: a layer of a pipeline stage gives a tensor like the one that it takes
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/pipeline.hpp"

#ifdef BELAY_BROKEN
using network = stack<flattened>;
#else
using network = stack<doubled>;
#endif

void train(const step_type& step, pipeline_type& pipeline, belay::pipeline_stage<network>& stage,
           belay::view<const float, 3> inputs) {
  pipeline.run(step, stage, inputs, squared{});
}
