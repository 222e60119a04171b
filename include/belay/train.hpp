// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the train room: what a training run needs around the step. Optimizer, gradient norm, plan and checkpoint
// files.
#pragma once

#include "belay/parallel/bucket/update_observer.hpp"   // IWYU pragma: export
#include "belay/train/checkpoint.hpp"       // IWYU pragma: export
#include "belay/train/clip.hpp"             // IWYU pragma: export
#include "belay/train/evaluate.hpp"         // IWYU pragma: export
#include "belay/train/host_types.hpp"       // IWYU pragma: export
#include "belay/train/launch.hpp"           // IWYU pragma: export
#include "belay/train/loss.hpp"             // IWYU pragma: export
#include "belay/train/memory_report.hpp"    // IWYU pragma: export
#include "belay/train/optimizer.hpp"        // IWYU pragma: export
#include "belay/train/parameter_files.hpp"  // IWYU pragma: export
#include "belay/train/parameter_list.hpp"   // IWYU pragma: export
#include "belay/train/phase_residency.hpp"  // IWYU pragma: export
#include "belay/train/phase_switch.hpp"     // IWYU pragma: export
#include "belay/train/plan.hpp"             // IWYU pragma: export
#include "belay/train/plan_table.hpp"       // IWYU pragma: export
#include "belay/train/run.hpp"              // IWYU pragma: export
#include "belay/train/safetensors.hpp"      // IWYU pragma: export
#include "belay/train/staged.hpp"           // IWYU pragma: export
#include "belay/train/step_graphs.hpp"      // IWYU pragma: export
#include "belay/train/stop_request.hpp"     // IWYU pragma: export
#include "belay/train/store.hpp"            // IWYU pragma: export
