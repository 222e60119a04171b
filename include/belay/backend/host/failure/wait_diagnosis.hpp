// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A wait for a peer that does not come: whether to go on, and, if not, why. The peer may have left its body; its
// process may have been stopped for longer than the stall limit; or the deadline has passed, and the cause says what
// the peer does instead.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <span>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Of one wait. Asked before each sleep only.
class wait_diagnosis {
 public:
  /// Whether rank q of the group has not come to this operation.
  using absence = function_ref<bool(int q)>;

  wait_diagnosis(const world_status& world, std::span<const int> members, lane which, deadline& until) noexcept
      : world_(&world), members_(members), lane_(which), until_(&until) {}

  /// True when the wait cannot succeed any more. Rank `awaited` is waited for although it may have come.
  [[nodiscard]] bool hopeless(absence absent, int awaited);

  [[nodiscard]] abort_cause cause(const call_site& call, absence absent, int awaited) const;

 private:
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int world_rank(int q) const noexcept { return members_[static_cast<std::size_t>(q)]; }
  [[nodiscard]] bool add_culprits(abort_cause& why, function_ref<bool(int q)> guilty) const;
  void blame_stopped(abort_cause& why) const;

  static constexpr world_status::clock::duration never = -largest_value<world_status::clock::duration>;

  const world_status* world_;
  std::span<const int> members_;
  lane lane_;
  deadline* until_;
  world_status::clock::duration stopped_since_ = never;
  bool stalled_ = false;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/failure/wait_diagnosis.ipp"  // IWYU pragma: export
#endif
