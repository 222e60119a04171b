// expect: the network offers no first\(\), so its layers take the inputs of the pipeline
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/pipeline.hpp"

#ifdef BELAY_BROKEN
using batch = belay::view<const std::int32_t, 2>;  // tokens, for an embedding
#else
using batch = belay::view<const float, 3>;
#endif

void train(const step_type& step, pipeline_type& pipeline, belay::pipeline_stage<stack<doubled>>& stage, batch inputs) {
  pipeline.run(step, stage, inputs, squared{});
}
