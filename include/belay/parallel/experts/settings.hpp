// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What an expert exchange is told, and what it says of its capacity.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Settings that every rank of an expert group agrees on.
struct expert_settings {
  std::size_t experts = 0;   // of all ranks; a multiple of the group's size
  std::size_t k = 0;         // experts a token visits
  std::size_t hidden = 0;    // elements of a row
  std::size_t capacity = 0;  // rows that a rank can receive in one dispatch
};

/// The capacity that dispatches have needed since it was last taken: the same on all ranks of a group.
struct expert_overflow {
  std::size_t needed = 0;    // the most rows that a rank was sent in one dispatch
  std::size_t capacity = 0;  // the rows that a rank had room for

  [[nodiscard]] bool happened() const noexcept { return needed > capacity; }
  /// For the vote of a step: the rows to make room for, 0 without an overflow.
  [[nodiscard]] std::size_t rows_wanted() const noexcept { return happened() ? needed : 0; }
};

}  // namespace belay::inline BELAY_ABI
