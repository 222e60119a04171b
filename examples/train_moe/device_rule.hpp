// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What computes, and what a run on a GPU cannot have.
#pragma once

#include <cstdint>

namespace train_moe {

struct command_line;

/// What computes: this processor, or a GPU that all ranks share.
enum class device_kind : std::uint8_t { host, cuda };

[[nodiscard]] constexpr const char* name(device_kind which) noexcept {
  return which == device_kind::cuda ? "cuda" : "host";
}

/// Throws belay::input_error, with the flag, for what a run with --device cuda cannot have.
void expect_runs_on_cuda(const command_line& line);
/// Steps are captured as graphs. Throws belay::input_error, with the flag, for a run that cannot have that.
void use_graphs(command_line& line);

}  // namespace train_moe
