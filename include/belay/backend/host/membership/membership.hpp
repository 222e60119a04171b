// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a rank comes to its world, and to the next one when some have failed: the survivors agree on who is left, get
// fresh memory in which all numbers start anew, and never touch the old one again.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/region_provider.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A rank's seat in one epoch of a world.
struct epoch_view {
  std::shared_ptr<world_status> world;
  std::shared_ptr<region_provider> regions;
  int number = 0;            // in this epoch
  std::vector<int> members;  // the ranks' numbers at the start, in order
};

/// What a rank shrinks by.
class membership {
 public:
  membership() = default;
  membership(const membership&) = delete;
  membership& operator=(const membership&) = delete;
  virtual ~membership() = default;

  /// Collective among those who are left; `number` is the caller's in the present epoch. Throws comm_error: timeout,
  /// or revoked for a rank that came too late.
  [[nodiscard]] virtual epoch_view shrink(const epoch_view& from, world_status::clock::duration limit, where at) = 0;

  /// The rank's body is over: who shrinks does not wait for it. `seat` is the one it started with.
  virtual void leave(const epoch_view& seat) noexcept = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
