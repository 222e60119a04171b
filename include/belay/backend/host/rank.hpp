// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank of a running world: what a body is called with. It makes groups and owns the rank's communication
// stream; everything else is an operation of a group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/host/group.hpp"
#include "belay/backend/host/group_state.hpp"
#include "belay/backend/host/health.hpp"
#include "belay/backend/host/stream.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank of a running world. Belongs to the thread that runs its body.
class rank {
 public:
  using group_type = host::group;

  rank(const std::shared_ptr<health>& world, std::shared_ptr<region_service> regions, int number)
      : shared_(world), regions_(std::move(regions)), groups_(*world, number), size_(world->ranks()), number_(number),
        stream_(world, number) {
    std::vector<int> everybody(static_cast<std::size_t>(size_));
    std::iota(everybody.begin(), everybody.end(), 0);
    world_.emplace(group(everybody, where{}));
  }
  rank(const rank&) = delete;  // a rank is one thread
  rank& operator=(const rank&) = delete;

  /// This rank's number in the world, from 0.
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// All ranks, in order.
  [[nodiscard]] const host::group& world() const noexcept { return *world_; }

  /// A group of `members`: ranks of the world in the order they shall have, this one among them. Every member
  /// makes the same groups of the same ranks in the same order; nobody waits for anybody here. Throws
  /// `usage_error`.
  [[nodiscard]] host::group group(std::span<const int> members, where at = where::current()) {
    const auto found = std::find(members.begin(), members.end(), number_);
    const int place = static_cast<int>(found - members.begin());
    const group_registry::share share = groups_.join(members, at);
    return host::group(std::make_shared<group_state>(shared_, regions_, std::vector<int>(members.begin(), members.end()),
                                                     place, share),
                       place, stream_);
  }

  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept { return stream_.abandoned(); }

  /// Runs what was started and not waited for, and ends the communication thread.
  void finish() noexcept { stream_.finish(); }

 private:
  std::shared_ptr<health> shared_;
  std::shared_ptr<region_service> regions_;
  group_registry groups_;
  int size_;
  int number_;
  communication_stream stream_;
  std::optional<host::group> world_;
};

static_assert(has_groups<rank>);

}  // namespace host
}  // namespace belay::inline BELAY_ABI
