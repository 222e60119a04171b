// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks as messages list them: many ranks at once must not make an unreadable message.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <span>
#include <string>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// "rank 2", "ranks 0, 1, 3", "ranks 0-6, 9": four and more that follow one another are a range.
[[nodiscard]] BELAY_DECL std::string ranks_text(std::span<const int> ranks);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/ranks_text.ipp"  // IWYU pragma: export
#endif
