// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A whole run: plan, world, training loop, and what follows the last step.
#pragma once

#include <exception>

#include "train_moe/command_line.hpp"

namespace train_moe {

/// Runs what the flags say and returns the program's exit code: 0 only if every step was committed. `argv` is that of
/// the program, which may be started anew by it.
[[nodiscard]] int run_session(const command_line& line, char** argv);

/// Whether this process says what ended the run, of all that take part: one clear report is enough.
[[nodiscard]] bool tells(const command_line& line, const std::exception& error);

}  // namespace train_moe
