// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank's part in a group: its endpoints in what the members share. Copies of a group handle own it together.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/region_provider.hpp"
#include "belay/backend/host/p2p/p2p_transport.hpp"
#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/backend/host/rendezvous/group_directory.hpp"
#include "belay/comm/lane.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Everything is allocated here: an operation allocates nothing.
class group_state {
 public:
  group_state(std::shared_ptr<world_status> world, std::shared_ptr<region_provider> regions, std::vector<int> members,
              int me, const group_directory::share& shared)
      : world_(std::move(world)),
        regions_(std::move(regions)),
        members_(std::move(members)),
        share_(shared),
        endpoints_{endpoint_of(lane::caller, me), endpoint_of(lane::stream, me)},
        transports_{transport_of(lane::caller, me), transport_of(lane::stream, me)} {}
  group_state(const group_state&) = delete;
  group_state& operator=(const group_state&) = delete;
  ~group_state() {
    if (world_->in_own_process()) group_directory::release(share_);
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::span<const int> members() const noexcept { return members_; }
  [[nodiscard]] std::uint32_t id() const noexcept { return share_.entry->id; }
  [[nodiscard]] world_status& world() const noexcept { return *world_; }
  [[nodiscard]] const std::shared_ptr<region_provider>& regions() const noexcept { return regions_; }
  [[nodiscard]] host::collective_endpoint& collective_endpoint(lane which) noexcept { return endpoints_[index(which)]; }
  [[nodiscard]] p2p_transport& transport(lane which) noexcept { return transports_[index(which)]; }
  [[nodiscard]] collective_order& collectives() noexcept { return collectives_; }

 private:
  [[nodiscard]] group_layout layout() const noexcept { return {share_.memory, size()}; }
  [[nodiscard]] host::collective_endpoint endpoint_of(lane which, int me) const {
    return {*world_, regions_->memory(), members_, which, id(), me, layout()};
  }
  [[nodiscard]] p2p_transport transport_of(lane which, int me) const {
    return {*world_, regions_->memory(), members_, which, id(), me, layout()};
  }

  std::shared_ptr<world_status> world_;
  std::shared_ptr<region_provider> regions_;
  std::vector<int> members_;
  group_directory::share share_;
  host::collective_endpoint endpoints_[lane_count];
  p2p_transport transports_[lane_count];
  collective_order collectives_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
