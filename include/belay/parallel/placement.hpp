// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the ranks of one mesh axis hold a tensor, as a type: each the same whole, each a part, or each one operand of a
// sum. Because the placement is part of the type, a wrong one is a compile error, and `redistribute`
// (redistribute.hpp) chooses the collective from two types.
//
//   belay::replicate            // every rank holds the whole
//   belay::shard<0>             // every rank holds some rows
//   belay::partial<belay::sum>  // the sum over the ranks is the tensor
//   const belay::local_part mine = belay::even_part(rows, ranks, rank);
#pragma once

#include <concepts>
#include <cstddef>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Every rank of the group holds the whole tensor, with identical bits.
struct replicate {};

/// Every rank of the group holds a contiguous part along dimension `Dim`. Parts may differ in size, and may be empty.
template <std::size_t Dim>
struct shard {
  static constexpr std::size_t dimension = Dim;
};

/// Every rank of the group holds one operand of `Op`, of the tensor's shape; the reduction over the group is the
/// tensor. `Op` is a reduction of the comm room: `partial<sum>`.
template <auto Op>
struct partial {
  static constexpr auto operation = Op;
};

template <class Placement>
inline constexpr bool is_shard = false;
template <std::size_t Dim>
inline constexpr bool is_shard<shard<Dim>> = true;

template <class Placement>
inline constexpr bool is_partial = false;
template <auto Op>
inline constexpr bool is_partial<partial<Op>> = true;

template <class Placement>
inline constexpr bool is_replicate = std::same_as<Placement, replicate>;

template <class Placement>
concept placement = is_replicate<Placement> || is_shard<Placement> || is_partial<Placement>;

/// A contiguous part of one dimension: entries `first` to `first + count - 1`.
struct local_part {
  std::size_t first = 0;
  std::size_t count = 0;

  friend constexpr bool operator==(local_part, local_part) = default;
};

/// Part `index` of `total` entries that are cut into `parts` contiguous parts. Their sizes differ by at most one, the
/// larger ones first. `index` is below `parts`.
[[nodiscard]] constexpr local_part even_part(std::size_t total, std::size_t parts, std::size_t index) noexcept {
  const std::size_t each = total / parts;
  const std::size_t larger = total % parts;
  return {index * each + (index < larger ? index : larger), each + (index < larger ? 1 : 0)};
}

}  // namespace belay::inline BELAY_ABI
