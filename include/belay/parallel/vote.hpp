// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The vote of a step's commit: the ballots of all ranks reduced to one, so that every rank draws the same conclusion.
// It is the only communication of a commit.
//
//   auto outcome = std::move(step).commit(belay::world_vote{mesh.control()});
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/step/commit.hpp"

namespace belay::inline BELAY_ABI {

/// Two small all_reduces over the group, when `commit` calls it. All ranks must commit at the same point.
template <communicator Group>
class world_vote {
 public:
  explicit world_vote(Group group, where at = where::current()) : group_(std::move(group)), at_(at) {}

  [[nodiscard]] ballot operator()(const ballot& own) const {
    std::array<std::uint64_t, 3> sums{own.open_obligations, own.misused_handles, own.non_finite};
    std::array<std::uint64_t, 1> largest{own.needed_rows};
    group_.all_reduce(std::span<std::uint64_t>(sums), sum, at_);
    group_.all_reduce(std::span<std::uint64_t>(largest), maximum, at_);
    return {sums[0], sums[1], sums[2], largest[0]};
  }

 private:
  Group group_;
  where at_;
};

}  // namespace belay::inline BELAY_ABI
