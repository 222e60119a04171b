// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks as messages name them: many at once must not make a message that nobody reads.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// "rank 2", "ranks 0, 1, 3", "ranks 0-6, 9": four and more that follow one another are a range.
[[nodiscard]] inline std::string ranks_text(std::span<const int> ranks) {
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
