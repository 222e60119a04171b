// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The flags, doorbells and abort flag of a group in one lane, as one of its ranks sees them.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <atomic>
#include <cstddef>
#include <span>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/address_space.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The flags, doorbells and world that the steps of `rendezvous` act on. It only forwards, so that the model checker
/// can put its own view in its place.
class lane_view {
 public:
  lane_view(world_status* world, std::span<const int> members, lane which, int me, peer_flags<>* all_flags) noexcept
      : world_(world),
        members_(members),
        lane_(which),
        me_(me),
        flags_(all_flags),
        own_doorbell_(&doorbell_of_member(me)) {}

  [[nodiscard]] int me() const noexcept { return me_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] peer_flags<>& flags_of(int who) const noexcept { return flags_[who]; }
  [[nodiscard]] doorbell& doorbell_of(int who) const noexcept {
    return who == me_ ? *own_doorbell_ : doorbell_of_member(who);
  }
  [[nodiscard]] bool aborted(std::memory_order order) const noexcept { return world_->aborted(order); }
  [[nodiscard]] address_space space() const noexcept { return world_->space(); }
  static void yield() noexcept { std_atomics::yield(); }

 private:
  [[nodiscard]] doorbell& doorbell_of_member(int who) const noexcept {
    return world_->doorbell_of(members_[static_cast<std::size_t>(who)], lane_);
  }

  world_status* world_;
  std::span<const int> members_;
  lane lane_;
  int me_;
  peer_flags<>* flags_;
  doorbell* own_doorbell_;  // used in every operation
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
