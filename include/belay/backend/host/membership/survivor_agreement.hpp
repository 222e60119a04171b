// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The steps by which one arbiter leads the survivors to one list of members: wait until each rank has asked or left,
// make what they go on with, and begin again if one more died meanwhile. Nothing else is here, so that a model checker
// can run exactly these steps.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <vector>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

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
