// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The files that a run writes beside its training, looked at before it begins.
#pragma once

#include <cstdint>

#include "train_moe/command_line.hpp"

namespace train_moe {

/// Throws belay::input_error where two flags name one file, or --trace what is no file of its own.
void expect_outputs_apart(const command_line& line);

/// A run that goes on after step `done` traces its own second to fourth step, or those of --trace-steps. Throws
/// belay::input_error where it trains none of them.
void place_trace(command_line& line, std::uint64_t done);

}  // namespace train_moe
