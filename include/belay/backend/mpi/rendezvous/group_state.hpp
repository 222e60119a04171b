// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one rank keeps of a group. Making it asks nobody: its members and how often they made a group before are
// its name, and the first operation compares the order in which each was given them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/progress/control_message.hpp"
#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// A group as one rank sees it. Each lane counts its own operations.
struct group_state {
  std::shared_ptr<mpi_progress> over;
  std::vector<int> members;
  int rank = 0;
  group_key key;
  std::uint64_t order = 0;
  std::uint32_t id = 0;  // the same on all members; 0: the world
  std::uint64_t operations[lane_count] = {};
  std::uint64_t exchanges[lane_count] = {};

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members.size()); }
  [[nodiscard]] int world_rank(int member) const noexcept { return members[static_cast<std::size_t>(member)]; }
};

/// The groups that a rank has made.
class group_directory {
 public:
  explicit group_directory(std::shared_ptr<mpi_progress> over)
      : over_(std::move(over)), world_(group_key::of_world(over_->ranks())) {}

  /// The next group of `members` (ranks of the world, in group order, this rank among them).
  [[nodiscard]] std::shared_ptr<group_state> make(std::span<const int> members, where at) {
    std::vector<int> sorted(members.begin(), members.end());
    std::sort(sorted.begin(), sorted.end());
    check_members(sorted, over_->ranks(), over_->number(), at);
    const std::uint64_t turn = made_[sorted]++;
    auto out = std::make_shared<group_state>();
    out->over = over_;
    out->members.assign(members.begin(), members.end());
    out->rank = static_cast<int>(std::find(members.begin(), members.end(), over_->number()) - members.begin());
    out->key = group_key::of(sorted, turn);
    out->order = group_key::of(members, turn).first;
    out->id = out->key.number(world_);
    over_->reporter().know(out->id, out->members);
    return out;
  }

 private:
  std::shared_ptr<mpi_progress> over_;
  group_key world_;
  std::map<std::vector<int>, std::uint64_t> made_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
