// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The plan of a run without the run: for programs that plan, such as belay-plan. It is the rehearsal that train_moe
// begins with, so that its bytes are those that train_moe measures.
#pragma once

#include "belay/train/launch.hpp"
#include "train_moe/command_line.hpp"

namespace train_moe {

/// The leases of every rank of the run that `line` describes. Neither text nor import is read, and no budget is held
/// against it. Throws belay::input_error for a run that cannot work, or that no rehearsal has addresses for.
[[nodiscard]] belay::rehearsal_result planned_run(command_line line);

}  // namespace train_moe
