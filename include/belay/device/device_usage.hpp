// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank has taken of its device beside what its plan knows, as it was measured when the rank's run was made.
//
//   options.measured = [](std::span<const belay::device_usage> ranks) {
//     std::printf("%s", belay::device_usage_text(ranks).c_str());
//   };
#pragma once

#include <cstdint>
#include <span>
#include <string>

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
[[nodiscard]] BELAY_DECL std::string device_usage_text(std::span<const device_usage> ranks);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/device_usage.ipp"  // IWYU pragma: export
#endif
