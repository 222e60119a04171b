// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that met and call different things: which of them are to blame. The same on all backends.
#pragma once

#include <algorithm>
#include <vector>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// `ranks`: who is to blame. `odd`: the first of those who are fewer than others; -1 where everybody is to blame.
struct culprits {
  std::vector<int> ranks;
  int odd = -1;
};

/// The smaller camp of `size` ranks is to blame; between equals everybody is. `alike(a, b)` compares two of them.
template <class Alike>
[[nodiscard]] culprits culprits_among(int size, Alike alike) {
  const auto camp = [&](int who) {
    int votes = 0;
    for (int q = 0; q < size; ++q) votes += alike(q, who);
    return votes;
  };
  int largest = 0;
  for (int q = 0; q < size; ++q) largest = std::max(largest, camp(q));
  culprits out;
  for (int q = 0; q < size; ++q) {
    const bool fewer = camp(q) < largest;
    if (fewer || 2 * largest <= size) out.ranks.push_back(q);
    if (fewer && out.odd < 0) out.odd = q;
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
