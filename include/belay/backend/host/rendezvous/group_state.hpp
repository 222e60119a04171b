// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank's part in a group: its endpoints in what the members share. Copies of a group handle own it together.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/memory/region_provider.hpp"
#include "belay/backend/host/p2p/p2p_transport.hpp"
#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's view of the directory of groups. Used by the rank's own thread.
/// The directory in which the ranks of a group find the memory that they share. Ranks create groups independently; the
/// k-th group that a rank makes of a set of members is the k-th that every other member makes of it. The first of them
/// takes the memory.
class group_directory {
 public:
  group_directory(world_status& world, int rank) noexcept : world_(&world), rank_(rank) {}
  group_directory(const group_directory&) = delete;
  group_directory& operator=(const group_directory&) = delete;

  /// A share in a group's memory, until `release`.
  struct share {
    shared_group_entry* entry;
    std::byte* memory;
  };

  /// Room for the groups of a world: a few of all its ranks and many small ones.
  [[nodiscard]] static std::size_t room_for(int ranks) noexcept {
    return 8 * group_layout::bytes_for(ranks) + static_cast<std::size_t>(16 + 4 * ranks) * group_layout::bytes_for(2);
  }

  /// The next group that this rank makes of `members` (ranks of the world, in group order, this one among them).
  [[nodiscard]] share join(std::span<const int> members, where at);
  /// The last share to be released frees the memory for another group.
  static void release(const share& mine) noexcept;

 private:
  enum : std::uint32_t { unused = 0, in_use = 1, free_again = 2 };
  class directory_lock;

  [[nodiscard]] shared_group_entry* find(const std::vector<int>& sorted, std::uint64_t generation) const;
  [[nodiscard]] shared_group_entry* take(std::span<const int> members, std::uint64_t generation, where at) const;

  world_status* world_;
  int rank_;
  std::map<std::vector<int>, std::uint64_t> made_;  // how many, of each set of members
};

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

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/rendezvous/group_state.ipp"  // IWYU pragma: export
#endif
