// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A whole run: plan, world, training loop, and what follows the last step.
#pragma once

#include "belay/core/error.hpp"
#include "train_moe/command_line.hpp"

namespace train_moe {

/// Of a rank that a launcher has started: its machine's first rank has the same error, and prints it.
class first_rank_tells final : public belay::backend_error {
 public:
  using backend_error::backend_error;
};

/// Runs what the flags say, and returns the program's exit code: 0 only if every step was committed, 75 where the run
/// was asked to stop and has saved its state. The program may be
/// executed again with `argv`.
[[nodiscard]] int run_session(const command_line& line, char** argv);

}  // namespace train_moe
