// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The two meeting points of a group, and which of them a call takes.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// A group has a meeting point in each lane. Collectives of a group of which nothing was started yet meet in the
/// caller's, and from its first start on all of them in the stream's: they have one order. The first start is told in
/// the caller's lane, as the last thing there: who calls instead of starting differs from it. Transfers between pairs,
/// which not all ranks call, stay in the lane of who runs them.
enum class lane : std::uint8_t { caller, stream };

inline constexpr std::size_t lane_count = 2;
inline constexpr lane all_lanes[] = {lane::caller, lane::stream};

[[nodiscard]] constexpr std::size_t index(lane which) noexcept { return static_cast<std::size_t>(which); }

/// The order of a group's collectives, as one rank knows: its ranks start the same, so all know the same.
class collective_order {
 public:
  /// Whether it is the first.
  [[nodiscard]] bool note_started() noexcept { return std::exchange(blocking_, lane::stream) == lane::caller; }
  /// Where a blocking one meets the other ranks.
  [[nodiscard]] lane blocking() const noexcept { return blocking_; }

 private:
  lane blocking_ = lane::caller;
};

}  // namespace belay::inline BELAY_ABI
