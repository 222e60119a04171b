// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// In which order a step gathers its layers, and in which the passes of the other phases do. A rehearsal notes it; the
// run follows it, and never changes it: what comes out of order costs one gather that nothing has started early, and is
// counted.
// IWYU pragma: private, include "belay/parallel/gathers.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/step/call_order.hpp"
#include "belay/step/phase.hpp"

namespace belay::inline BELAY_ABI {

/// How often layers were gathered in the order of the plan, and otherwise.
struct gather_counts {
  std::uint64_t prefetched = 0;  // started before the layer asked
  std::uint64_t in_order = 0;    // as the plan says, but not started before
  std::uint64_t missed = 0;      // not as the plan says
  std::size_t peak_bytes = 0;    // of parameters that were whole, or on their way, at a time
};

/// The gathers of one step or pass, as numbers of layers. Immutable in a run.
using gather_order = call_order;

/// The orders that a rehearsal has noted: of a step, of a pass of evaluation and of one of a rollout.
struct gather_plan : std::array<gather_order, phase_count> {
  /// Those of the step, on the rank that was rehearsed.
  std::size_t micro_batches = 0;
};

}  // namespace belay::inline BELAY_ABI
