// expect: the inputs of a pipeline are a view whose first axis is the micro-batch
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/pipeline.hpp"

#ifdef BELAY_BROKEN
using batch = std::vector<float>;
#else
using batch = belay::view<const float, 3>;
#endif

void train(const step_type& step, pipeline_type& pipeline, belay::pipeline_stage<stack<doubled>>& stage,
           const batch& inputs) {
  pipeline.run(step, stage, inputs, squared{});
}
