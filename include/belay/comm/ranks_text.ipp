// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Lists and ranges of ranks.
#pragma once

#include <cstddef>

#include "belay/comm/ranks_text.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string ranks_text(std::span<const int> ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last - i < 3) last = i;  // short ones are listed
    out += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) out += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
