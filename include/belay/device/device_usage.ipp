// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory that ranks have used of their devices, in words.
#pragma once

#include <utility>

#include "belay/core/bounds.hpp"
#include "belay/device/device_usage.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string device_usage_text(std::span<const device_usage> ranks) {
  std::string out = "measured beside the plan, bytes of each rank's device\n";
  constexpr std::pair<const char*, std::uint64_t device_usage::*> rows[] = {
      {"context and others", &device_usage::before},
      {"communication", &device_usage::communication},
      {"  planned for it", &device_usage::planned},
      {"products' library", &device_usage::kit},
      {"of", &device_usage::total},
  };
  for (const auto& [purpose, bytes] : rows) {
    std::uint64_t most = 0;
    for (const device_usage& each : ranks) most = greater_of(most, each.*bytes);
    if (bytes == &device_usage::planned && most == 0) continue;
    std::string line = "  ";
    line += purpose;
    line.resize(22, ' ');
    for (const device_usage& each : ranks) (line += ' ') += std::to_string(each.*bytes);
    (out += line) += '\n';
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
