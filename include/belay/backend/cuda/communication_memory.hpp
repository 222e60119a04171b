// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory of a device that ranks communicate over where they share it. It follows from a plan alone, so that plans
// have it where there is no device.
// IWYU pragma: private, include "belay/backend/cuda/world.hpp"
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>

#include "belay/comm/rehearsal.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Bytes of a device that a rank's kernels and copies to and from memory of the host work in.
inline constexpr std::size_t bytes_of_calls = std::size_t{1} << 16;

/// The sizes of the memory that a world's ranks communicate over.
struct communication_memory {
  /// Bytes that one rank gives its peers of a group at a time; larger operations take several rounds. A multiple of
  /// 256. Unless said here they are a group's own: what the largest collective that is planned for it needs, as a power
  /// of two, `least` to `most`; `least` of a group that no plan knows.
  std::optional<std::size_t> slot_bytes = {};
  /// Room for so many groups of all ranks. Groups that divide the ranks among them take the room of one.
  std::size_t groups = 8;

  static constexpr std::size_t least = std::size_t{1} << 20, most = std::size_t{1} << 24;

  /// The slots of a group in whose largest collective a rank gives its peers so many bytes.
  [[nodiscard]] std::size_t slot_for(std::size_t given) const noexcept {
    return slot_bytes.value_or(std::bit_ceil(std::clamp(given, least, most)));
  }
  /// Bytes of the device, for all ranks: two slots a rank in each group that is planned, and in others, up to `groups`.
  [[nodiscard]] std::size_t bytes(int ranks, const rehearsal::call_sizes& planned = {}) const noexcept {
    const std::size_t all = static_cast<std::size_t>(ranks);
    checked_size slot_memory;
    std::size_t places = 0;  // ranks of all planned groups
    for (const auto& each : planned.entries()) {
      if (each.ranks < 2) continue;
      const std::size_t members = each.members.empty() ? all : each.members.size();
      slot_memory += checked_size(slot_for(each.bytes)) * members;
      places += members;
    }
    if (places < groups * all) slot_memory += checked_size(slot_for(0)) * (groups * all - places);
    return (slot_memory * 2).saturated();
  }
  /// Bytes that each of `ranks` communicates with: its part of those, and what its calls work in. One rank alone has no
  /// peers.
  [[nodiscard]] std::size_t bytes_of_rank(int ranks, const rehearsal::call_sizes& planned) const noexcept {
    return (ranks == 1 ? 0 : bytes(ranks, planned) / static_cast<std::size_t>(ranks)) + bytes_of_calls;
  }
};

}  // namespace belay::inline BELAY_ABI::cuda
