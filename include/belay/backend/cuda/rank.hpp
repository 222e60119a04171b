// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank of a world over a device: what a body is called with. It makes groups, and engines and kits are made of its
// device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/cuda/communication_order.hpp"
#include "belay/backend/cuda/group.hpp"
#include "belay/backend/cuda/kit.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/shared_device.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/device_usage.hpp"
#include "belay/device/stream_watch.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Belongs to the thread that runs its body. `control()` is the world of the host that it is a rank of too.
template <device_api Api, control_rank ControlRank>
class rank {
 public:
  using api_type = Api;
  using group_type = cuda::group<Api, ControlRank>;
  using control_type = typename ControlRank::group_type;

  /// Both outlive it. The calling thread becomes one of the device.
  rank(ControlRank& control, std::shared_ptr<shared_device<Api>> shared, where at = where::current())
      : control_(&control), shared_(std::move(shared)), order_(open(at)) {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    world_.emplace(make(all, at));
  }
  rank(const rank&) = delete;  // a rank is one thread
  rank& operator=(const rank&) = delete;

  /// This rank's number in the world, from 0.
  [[nodiscard]] int number() const noexcept { return control_->number(); }
  [[nodiscard]] int size() const noexcept { return control_->size(); }
  /// All ranks, in order, with memory of the device.
  [[nodiscard]] const group_type& world() const noexcept { return *world_; }
  /// All ranks, in order, with host memory.
  [[nodiscard]] const control_type& control() const noexcept { return control_->world(); }
  /// A group of `members`: ranks of the world in the order they shall have, this one among them. Every member makes
  /// the same groups of the same ranks in the same order; no rank waits for another here. Throws `usage_error`, and
  /// `budget_error` where the device's memory for groups has no room.
  [[nodiscard]] group_type group(std::span<const int> members, where at = where::current()) {
    return make(members, at);
  }

  /// Its device, for memory, streams and kits.
  [[nodiscard]] const device<Api>& gpu() const noexcept { return shared_->of(number()); }
  /// Memory of a tier, and a kit, for the run of a body.
  using memory_type = tier_memory<Api>;
  using kit_type = kit<Api>;
  [[nodiscard]] memory_type make_memory(tier where_it_is, std::size_t bytes, where at = where::current()) const {
    return memory_type(gpu(), where_it_is, bytes, at);
  }
  [[nodiscard]] kit_type make_kit(where at = where::current()) const { return kit_type(gpu(), watch(), at); }
  /// For the streams of this rank: their waits end at the world's timeout, and when it fails.
  [[nodiscard]] std::shared_ptr<const stream_watch> watch() const { return control_->watch(); }
  /// Bytes that the rank takes of the device beside its leases, as its world measured them for a launch.
  [[nodiscard]] device_usage usage() const noexcept { return shared_->usage(); }
  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept { return order_->abandoned(); }

 private:
  [[nodiscard]] std::shared_ptr<communication_order<Api>> open(where at) const {
    gpu().open(at);
    return std::make_shared<communication_order<Api>>(gpu(), size(), watch(), at);
  }
  [[nodiscard]] group_type make(std::span<const int> members, where at) {
    control_type twin = control_->group(members, at);  // which refuses members that are none
    auto shared = shared_->join(members, made_[std::vector<int>(members.begin(), members.end())]++, at);
    return group_type(
        std::make_shared<group_member<Api, ControlRank>>(control_->state(), std::move(shared), members, twin.rank()),
        std::move(twin), order_);
  }

  ControlRank* control_;
  std::shared_ptr<shared_device<Api>> shared_;
  std::shared_ptr<communication_order<Api>> order_;
  std::map<std::vector<int>, std::size_t> made_;
  std::optional<group_type> world_;
};

}  // namespace belay::inline BELAY_ABI::cuda
