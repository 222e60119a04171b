// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The phases of a training run. Each has an order of gathers of its own; steps run in `train`, forward-only passes in
// any. `phase_switch` (train/phase_switch.hpp) goes from one to another.
//
//   if (run.engine().current_phase() == belay::phase::rollout) ...
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The phase of a rank: it trains, it evaluates, or it lets the model write.
enum class phase : std::uint8_t { train, eval, rollout };

/// All phases, and how many.
inline constexpr std::array all_phases{phase::train, phase::eval, phase::rollout};
inline constexpr std::size_t phase_count = all_phases.size();

/// The name: "train", "eval", "rollout".
[[nodiscard]] constexpr const char* name(phase which) noexcept {
  constexpr const char* names[] = {"train", "eval", "rollout"};
  return names[static_cast<std::size_t>(which)];
}

}  // namespace belay::inline BELAY_ABI
