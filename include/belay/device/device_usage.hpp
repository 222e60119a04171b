// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank has taken of its device beside what its plan knows, as it was measured when the rank's run was made.
//
//   options.measured = [](std::span<const belay::device_usage> ranks) {
//     std::printf("%s", belay::device_usage_text(ranks).c_str());
//   };
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of one rank's device. Differences of what the device says that it has left: what others take meanwhile is in
/// them.
struct device_usage {
  /// Of the device.
  std::uint64_t total = 0;
  std::uint64_t before = 0;         // taken before the rank's first: the context, and what others have
  std::uint64_t communication = 0;  // communicators, and memory and streams that the rank's groups work with
  std::uint64_t kit = 0;            // what libraries of products have taken
  std::uint64_t planned = 0;        // for communication, as the plan has estimated it; 0: it has not

  [[nodiscard]] bool operator==(const device_usage&) const = default;
};

/// A line a purpose, a column a rank; what was planned stands below what was measured of it, where ranks' plans have an
/// estimate.
[[nodiscard]] inline std::string device_usage_text(std::span<const device_usage> ranks) {
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
