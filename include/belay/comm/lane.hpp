// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The two orders in which a rank communicates.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Operations of a rank run in two orders that never mix: those its own thread calls, and those it started, which its
/// communication stream runs. Each lane of a group has a meeting point of its own.
enum class lane : std::uint8_t { caller, stream };

inline constexpr std::size_t lane_count = 2;
inline constexpr lane all_lanes[] = {lane::caller, lane::stream};

[[nodiscard]] constexpr std::size_t index(lane which) noexcept { return static_cast<std::size_t>(which); }

}  // namespace belay::inline BELAY_ABI
