// expect: the ranks of an expert exchange gather their counts with all_gather_v
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/rehearsal.hpp"
#include "belay/parallel/experts.hpp"

struct equal_counts : belay::rehearsal::group {
  static constexpr bool has_varying_counts = false;
};
#ifdef BELAY_BROKEN
using chosen = equal_counts;
#else
using chosen = belay::rehearsal::group;
#endif
bool any(const belay::expert_exchange<float, chosen>& experts) { return experts.local_experts() > 0; }
