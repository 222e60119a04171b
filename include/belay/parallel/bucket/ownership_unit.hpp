// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What is owned by one rank together: a chunk of a parameter or, in models so large that the norm's table would be too,
// 2^k chunks. The sum over a unit has one owner, and the same bits however the parameter is sharded.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/reduce.hpp"

namespace belay::inline BELAY_ABI {

/// A chunk: elements of a parameter that are summed in lanes before they are added to others.
inline constexpr std::size_t parameter_chunk = kernel::sum_chunk;

/// Number of chunks of `elements` elements.
[[nodiscard]] constexpr std::size_t chunks_of(std::size_t elements) noexcept {
  return elements / parameter_chunk + (elements % parameter_chunk != 0 ? 1 : 0);
}

/// 2^k chunks of a parameter, counted from its local start. k follows from the model alone (`norm_table::unit`).
class ownership_unit {
 public:
  static constexpr unsigned largest_k = 51;  // more elements than any memory holds

  constexpr ownership_unit() = default;
  /// 2^k chunks; k is `largest_k` at most.
  explicit constexpr ownership_unit(unsigned k) noexcept : k_(k < largest_k ? k : largest_k) {}

  [[nodiscard]] constexpr unsigned k() const noexcept { return k_; }
  [[nodiscard]] constexpr std::size_t elements() const noexcept { return parameter_chunk << k_; }
  /// Number of units of `elements` elements; the last may be shorter.
  [[nodiscard]] constexpr std::size_t count(std::size_t elements) const noexcept {
    return elements / this->elements() + (elements % this->elements() != 0 ? 1 : 0);
  }

  friend constexpr bool operator==(ownership_unit, ownership_unit) = default;

 private:
  unsigned k_ = 0;
};

}  // namespace belay::inline BELAY_ABI
