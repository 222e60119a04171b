// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whether steps are captured as graphs of a device.
//
//   belay::step_graphs graphs{mesh, store, optimizer, belay::graph_use::captured};
#pragma once

#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Whether steps are captured, or run as they are (train/step_graphs.hpp).
enum class graph_use : std::uint8_t { none, captured };

}  // namespace belay::inline BELAY_ABI
