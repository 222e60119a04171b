// expect: this schedule needs more micro-batches: DualPipeV two for each rank
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/schedule/zero_bubble.hpp"

namespace schedule = belay::schedule;

#ifdef BELAY_BROKEN
static constexpr auto table = schedule::generate<schedule::dualpipe_v_rule{}, 2, 3>();
#else
static constexpr auto table = schedule::generate<schedule::dualpipe_v_rule{}, 2, 4>();
#endif
