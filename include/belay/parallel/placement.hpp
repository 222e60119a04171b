// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the ranks of one mesh axis hold a tensor, as a type: each the same whole, each a part, or each one operand of a
// sum. Because the placement is part of the type, a wrong one is a compile error, and `redistribute`
// (redistribute.hpp) chooses the collective from two types.
//
//   belay::replicate                                   // every rank holds the whole
//   belay::shard<0, belay::axis::expert>               // every rank of the expert axis holds some rows
//   belay::partial<belay::sum, belay::axis::replica>   // the sum over the ranks is the tensor
//   const belay::local_part mine = belay::even_part(rows, ranks, rank);
#pragma once

#include <concepts>
#include <cstddef>

#include "belay/comm/axis.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Every rank holds the whole tensor, with identical bits.
struct replicate {};

/// Every rank of the axis holds a contiguous part along dimension `Dim`. Parts may differ in size, and may be empty.
template <std::size_t Dim, axis Axis = axis::data>
struct shard {
  static constexpr std::size_t dimension = Dim;
  static constexpr axis over = Axis;
};

/// Every rank of the axis holds one operand of `Op`, of the tensor's shape; the reduction over the axis is the tensor.
/// `Op` is a reduction of the comm room: `partial<sum>`.
template <auto Op, axis Axis = axis::data>
struct partial {
  static constexpr auto operation = Op;
  static constexpr axis over = Axis;
};

/// Each rank holds a part, of whichever dimension and over whichever axis. Which axis is meant, `is_shard_over` asks.
template <class Placement>
inline constexpr bool is_shard = false;
template <std::size_t Dim, axis Axis>
inline constexpr bool is_shard<shard<Dim, Axis>> = true;

template <class Placement, axis Axis>
inline constexpr bool is_shard_over = false;
template <std::size_t Dim, axis Axis>
inline constexpr bool is_shard_over<shard<Dim, Axis>, Axis> = true;

template <class Placement>
inline constexpr bool is_partial = false;
template <auto Op, axis Axis>
inline constexpr bool is_partial<partial<Op, Axis>> = true;

template <class Placement>
inline constexpr bool is_replicate = std::same_as<Placement, replicate>;

template <class Placement>
concept placement = is_replicate<Placement> || is_shard<Placement> || is_partial<Placement>;

/// Two placements that mean the same ranks. `replicate` holds on any axis.
template <class A, class B>
inline constexpr bool on_one_axis = true;
template <class A, class B>
requires requires {
  A::over;
  B::over;
}
inline constexpr bool on_one_axis<A, B> = A::over == B::over;

/// Whether a parameter, or another tensor with a placement, is cut over the ranks of `Axis`. It sorts parameters into
/// families: `belay::sharded_over<belay::axis::expert>(parameter)`.
template <axis Axis, class Tensor>
requires placement<typename Tensor::placement_type>
[[nodiscard]] constexpr bool sharded_over(const Tensor&) noexcept {
  return is_shard_over<typename Tensor::placement_type, Axis>;
}

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
