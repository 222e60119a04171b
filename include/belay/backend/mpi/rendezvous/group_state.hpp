// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one rank keeps of a group. To make one takes no communication: its members, and how many groups of the same
// members were made before, identify it. The first operation compares the order in which each rank was given them.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
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
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// A group as one rank sees it. Each lane counts its own operations.
struct group_state {
  std::shared_ptr<mpi_progress> progress;
  std::vector<int> ranks;  // of the world, in group order
  int rank = 0;
  group_key key;
  std::uint64_t order = 0;
  std::uint32_t id = 0;  // the same on all members; 0: the world
  std::uint64_t operations[lane_count] = {};
  std::uint64_t exchanges[lane_count] = {};
  collective_order order_of_calls = {};

  [[nodiscard]] collective_order& collectives() noexcept { return order_of_calls; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks.size()); }
  [[nodiscard]] std::span<const int> members() const noexcept { return ranks; }
  [[nodiscard]] int world_rank(int member) const noexcept { return ranks[static_cast<std::size_t>(member)]; }
};

/// The groups that a rank has made.
class group_directory {
 public:
  explicit group_directory(std::shared_ptr<mpi_progress> progress)
      : progress_(std::move(progress)), world_(group_key::of_world(progress_->ranks())) {}

  /// The next group of `members` (ranks of the world, in group order, this rank among them).
  [[nodiscard]] std::shared_ptr<group_state> make(std::span<const int> members, where at) {
    std::vector<int> sorted(members.begin(), members.end());
    std::sort(sorted.begin(), sorted.end());
    check_members(sorted, progress_->ranks(), progress_->number(), at);
    const std::uint64_t made_before = made_[sorted]++;
    auto out = std::make_shared<group_state>();
    out->progress = progress_;
    out->ranks.assign(members.begin(), members.end());
    out->rank = static_cast<int>(std::find(members.begin(), members.end(), progress_->number()) - members.begin());
    out->key = group_key::of(sorted, made_before);
    out->order = group_key::of(members, made_before).first;
    out->id = out->key.number(world_);
    progress_->reporter().add_group(out->id, out->ranks);
    return out;
  }

 private:
  std::shared_ptr<mpi_progress> progress_;
  group_key world_;
  std::map<std::vector<int>, std::uint64_t> made_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
