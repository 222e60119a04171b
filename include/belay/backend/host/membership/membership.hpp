// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a rank comes to its world, and to the next one when some have failed: the survivors agree on the members, get
// fresh memory in which all numbers start anew, and never touch the old memory again.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <memory>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/region_provider.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One epoch of a world, as one of its ranks sees it.
struct epoch_view {
  std::shared_ptr<world_status> world;
  std::shared_ptr<region_provider> regions;
  int number = 0;            // in this epoch
  std::vector<int> members;  // the ranks' numbers at the start, in order
};

/// By which a rank shrinks: threads agree under a lock, processes through their coordinator.
class membership {
 public:
  membership() = default;
  membership(const membership&) = delete;
  membership& operator=(const membership&) = delete;
  virtual ~membership() = default;

  /// Collective among the ranks that are left; `number` is the caller's in the present epoch. Throws comm_error:
  /// timeout, or revoked for a rank that came too late.
  [[nodiscard]] virtual epoch_view shrink(const epoch_view& from, world_status::clock::duration limit, where at) = 0;

  /// The rank's body is over: a shrink does not wait for it. `view` is of its first epoch.
  virtual void note_exit(const epoch_view& view) noexcept = 0;
};

/// The steps by which one arbiter leads the survivors to one list of members: wait until each rank has asked or left,
/// make what they go on with, and begin again if one more died meanwhile. A model checker runs exactly these steps.
/// Called after each event; tells at most once. `survivors` is storage for the list. `Arbiter` has
///   const std::vector<int>& members();             ranks of the present epoch, in order
///   bool asks(int rank); bool has_left(int rank);
///   void hurry();                                  some have neither asked nor left
///   bool find_dead(const std::vector<int>&);       true when one of them has died meanwhile; it has left then
///   bool renew(const std::vector<int>&);           false: they cannot go on, and none asks any more
///   void tell(const std::vector<int>&);            gives each the list; none asks any more
template <class Arbiter>
void agree(Arbiter&& arbiter, std::vector<int>& survivors) {
  while (true) {
    survivors.clear();
    bool waiting = false;
    for (const int rank : arbiter.members()) {
      if (arbiter.asks(rank))
        survivors.push_back(rank);
      else if (!arbiter.has_left(rank))
        waiting = true;
    }
    if (survivors.empty()) return;
    if (waiting) return arbiter.hurry();
    if (arbiter.find_dead(survivors)) continue;
    if (!arbiter.renew(survivors)) return;
    if (arbiter.find_dead(survivors)) continue;
    return arbiter.tell(survivors);
  }
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
