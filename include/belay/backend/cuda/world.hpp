// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that share a device. Its ranks are those of a world of threads, which stays what they agree over:
// votes, counts and failures travel there. A rank is what a body is called with: it makes groups, and engines and kits
// are made of its device.
//
//   belay::cuda::runtime_api api;
//   belay::cuda::world world(api, belay::host::world(4));
//   world.run([](auto& rank) { belay::cuda::kit kit(rank.gpu(), rank.watch()); ... });
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda/communication_order.hpp"
#include "belay/backend/cuda/group.hpp"
#include "belay/backend/cuda/kit.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/shared_device.hpp"
#include "belay/comm/axis.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/stream_watch.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// A rank of such a world. Belongs to the thread that runs its body. `control()` is the world of the host that it is a
/// rank of too.
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

/// `run(body)` calls `body(rank&)` on a thread for each rank, as `Control` does. Can be run again. The Api outlives it,
/// and it all that bodies make of their ranks' devices.
template <device_api Api, class Control>
class world {
  static_assert(
      requires { requires Control::ranks_are_threads; },
      "belay: ranks that share a device are threads of one process: belay::cuda::world(api, "
      "belay::host::world(ranks))");

 public:
  using api_type = Api;
  using memory_type = tier_memory<Api>;
  using kit_type = kit<Api>;
  /// Of this process.
  static constexpr bool ranks_are_threads = true;

  /// Takes the memory that ranks communicate over. Throws backend_error where there is no device, or no room.
  world(Api& api, Control control, const communication_memory& sizes = {}, where at = where::current())
      : control_(std::move(control)), shared_(std::make_shared<shared_device<Api>>(api, control_.size(), sizes, at)) {}

  /// Ranks.
  [[nodiscard]] int size() const noexcept { return control_.size(); }
  /// Runs the body on every rank and returns when all have returned, as `Control` does.
  template <class Body>
  auto run(Body&& body) const {
    shared_->begin_run(where::current());
    return control_.run([&](auto& control) {
      rank<Api, std::remove_reference_t<decltype(control)>> self(control, shared_);
      return body(self);
    });
  }

  /// The bytes of the device that each rank communicates with where those collectives are planned; and the next run
  /// has that. A world without a plan has what it was made with.
  [[nodiscard]] std::size_t communication_bytes(const mesh_record&, const rehearsal::call_sizes& planned) const {
    return shared_->planned_bytes(planned);
  }
  void make_room_for(const rehearsal::call_sizes& planned, where = where::current()) const {
    shared_->make_room_for(planned);
  }

  /// The device of rank `number`.
  [[nodiscard]] const device<Api>& gpu(int number) const noexcept { return shared_->of(number); }
  /// Bytes that a rank's kit uses beside the operands of its products, and for its other kernels.
  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return kit<Api>::workspace_of(gpu(0).api()); }
  /// The bytes that the device has left for ranks' leases, beside what they communicate over and what libraries take
  /// for their kits, which is measured. Throws backend_error.
  [[nodiscard]] std::size_t available_device_memory(where at = where::current()) const { return shared_->measure(at); }

 private:
  Control control_;
  std::shared_ptr<shared_device<Api>> shared_;
};

}  // namespace belay::inline BELAY_ABI::cuda
