// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Layers' calls as ranges of NVTX, which Nsight Systems shows above the kernels that they queue: "attention 3, forward
// of micro-batch 0". A step that is launched as a graph has them where it is captured alone; each launch is a range
// with the step's number, "step 12: micro-batches".
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <cstdio>

#include "belay/step.hpp"

namespace train_moe {

/// Ranges are a thread's own, so all ranks share one of these.
class nvtx_calls final : public belay::call_listener {
 public:
  void begin(const belay::call_under_way& now) noexcept override {
    char text[160];
    std::snprintf(text, sizeof text, "%s %zu, %s of micro-batch %zu", now.layer, now.layer_index, name(now.what),
                  now.micro_batch);
    nvtxRangePushA(text);  // copies it
  }
  void end() noexcept override { nvtxRangePop(); }
  void begin_launch(const char* part, std::uint64_t step) noexcept override {
    char text[160];
    std::snprintf(text, sizeof text, "step %llu: %s", static_cast<unsigned long long>(step), part);
    nvtxRangePushA(text);
  }
  void end_launch() noexcept override { nvtxRangePop(); }
};

}  // namespace train_moe
