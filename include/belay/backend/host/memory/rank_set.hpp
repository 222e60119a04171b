// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ranks that have mapped a region of symmetric memory: those of the group that made it. To all others it is
// ordinary memory.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstdint>
#include <span>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The ranks of a group. Group 0 is the world.
struct rank_set {
  static constexpr std::uint32_t nobody = 0xffffffff;

  std::uint32_t group = nobody;
  std::uint64_t ranks = 0;  // a bit for each of the world's first 64
  bool beyond = false;      // there are others

  [[nodiscard]] static rank_set of(std::span<const int> members, std::uint32_t group) noexcept {
    rank_set out{group};
    for (const int rank : members) {
      if (rank < 64)
        out.ranks |= std::uint64_t{1} << rank;
      else
        out.beyond = true;
    }
    return out;
  }
  /// All of `others` are among these, as far as that is known: of ranks beyond the first 64 where the group is the
  /// same, or these are the world.
  [[nodiscard]] bool includes(const rank_set& others) const noexcept {
    return group == 0 || group == others.group || (!others.beyond && (others.ranks & ~ranks) == 0);
  }
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
