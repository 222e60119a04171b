// expect: a pipeline stage is made of a network that offers its layers
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/pipeline.hpp"

#ifdef BELAY_BROKEN
using network = doubled;
#else
using network = stack<doubled>;
#endif

void make(network& net) { const belay::pipeline_stage stage{net}; }
