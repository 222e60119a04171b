// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the ranks of a mesh hold a tensor, as a type: along each axis the same whole, a part each, or an operand each of
// a reduction. Because the placement is part of the type, a wrong one is a compile error, and `redistribute`
// (redistribute.hpp) chooses the collectives from two types.
//
//   belay::replicate                                   // every rank holds the whole
//   belay::shard<0, belay::axis::expert>               // every rank of the expert axis holds some rows
//   belay::partial<belay::sum, belay::axis::replica>   // the sum over the ranks is the tensor
//   belay::placed<belay::shard<0, belay::axis::expert>, belay::shard<1, belay::axis::tensor>>  // a box of both
//   const belay::local_part mine = belay::even_part(rows, ranks, rank);
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "belay/comm/axis.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Every rank holds the whole tensor, with identical bits.
struct replicate {};

/// Every rank of the axis holds a contiguous part along dimension `Dim`. Parts may differ in size, and may be empty.
template <std::size_t Dim, axis Axis = axis::data>
struct shard {
  /// The dimension that is cut, and the axis whose ranks have the parts.
  static constexpr std::size_t dimension = Dim;
  static constexpr axis over = Axis;
};

/// Every rank of the axis holds one operand of `Op`, of the tensor's shape; the reduction over the axis is the tensor.
/// `Op` is a reduction of the comm room: `partial<sum>`.
template <auto Op, axis Axis = axis::data>
struct partial {
  /// The operation that makes the whole of the terms, and the axis whose ranks have them.
  static constexpr auto operation = Op;
  static constexpr axis over = Axis;
};

/// One of these for each axis of a mesh. Axes that it does not name replicate the tensor. Two that cut one dimension do
/// so one after the other: the second cuts each part of the first.
template <class... Each>
struct placed {};

/// Each rank holds a part, of whichever dimension and over whichever axis. Which axis is meant, `is_shard_over` asks.
template <class Placement>
inline constexpr bool is_shard = false;
template <std::size_t Dim, axis Axis>
inline constexpr bool is_shard<shard<Dim, Axis>> = true;

/// Whether a placement cuts a tensor over the ranks of that axis.
template <class Placement, axis Axis>
inline constexpr bool is_shard_over = false;
template <std::size_t Dim, axis Axis>
inline constexpr bool is_shard_over<shard<Dim, Axis>, Axis> = true;
template <class... Each, axis Axis>
inline constexpr bool is_shard_over<placed<Each...>, Axis> = (is_shard_over<Each, Axis> || ...);

/// Whether a placement leaves terms of a sum, or of another operation.
template <class Placement>
inline constexpr bool is_partial = false;
template <auto Op, axis Axis>
inline constexpr bool is_partial<partial<Op, Axis>> = true;
template <class... Each>
inline constexpr bool is_partial<placed<Each...>> = (is_partial<Each> || ...);

/// Whether every rank has the whole.
template <class Placement>
inline constexpr bool is_replicate = std::same_as<Placement, replicate>;

/// A placement of one axis, or `replicate`, which holds on all of them.
template <class Placement>
concept axis_placement = is_replicate<Placement> || is_shard<Placement> ||
    (is_partial<Placement>&& requires { Placement::over; });

/// Whether it is a placement, of one axis or of several.
template <class Placement>
inline constexpr bool is_placement = axis_placement<Placement>;
template <class... Each>
inline constexpr bool is_placement<placed<Each...>> = (axis_placement<Each> && ...);

/// How the ranks of a mesh hold a tensor.
template <class Placement>
concept placement = is_placement<Placement>;

/// Two placements that mean the same ranks. `replicate` holds on any axis.
template <class A, class B>
inline constexpr bool on_one_axis = true;
template <class A, class B>
requires requires {
  A::over;
  B::over;
}
inline constexpr bool on_one_axis<A, B> = A::over == B::over;

/// One axis of a placement, as a value.
struct placement_entry {
  /// Each rank of the axis has the whole, a part, or a term.
  enum class placement_kind : std::uint8_t { replicate, shard, partial };

  /// The kind of the entry, and the axis of the ranks.
  placement_kind how = placement_kind::replicate;
  axis over = axis::data;
  std::size_t dimension = 0;   // of a shard
  std::uint8_t operation = 0;  // of a partial: the code of its reduction

  /// Whether each rank has a part.
  [[nodiscard]] constexpr bool cuts() const noexcept { return how == placement_kind::shard; }
  friend constexpr bool operator==(placement_entry, placement_entry) = default;
};

/// The entry of one axis of the placement.
template <class Placement>
[[nodiscard]] constexpr placement_entry entry_of() noexcept {
  if constexpr (is_shard<Placement>)
    return {placement_entry::placement_kind::shard, Placement::over, Placement::dimension};
  else if constexpr (is_partial<Placement>)
    return {placement_entry::placement_kind::partial, Placement::over, 0,
            static_cast<std::uint8_t>(Placement::operation.code)};
  else
    return {};
}

/// The list of a placement.
template <class Placement>
inline constexpr std::array<placement_entry, 1> entries_of{entry_of<Placement>()};
template <class... Each>
inline constexpr std::array<placement_entry, sizeof...(Each)> entries_of<placed<Each...>>{entry_of<Each>()...};

/// How many axes cut the tensor; none where that is no placement.
template <class Placement>
[[nodiscard]] constexpr std::size_t cuts_of() noexcept {
  std::size_t count = 0;
  if constexpr (placement<Placement>)
    for (const placement_entry& each : entries_of<Placement>) count += each.cuts() ? 1 : 0;
  return count;
}
/// Along which directions of the mesh they are (see `directions_of`): along all others every rank has the same.
template <placement Placement>
[[nodiscard]] constexpr axis_set cut_directions() noexcept {
  axis_set out;
  for (const placement_entry& each : entries_of<Placement>)
    if (each.cuts()) out.add(directions_of(each.over));
  return out;
}

/// The rules for a placement's list of axes, each false where it is broken.
template <placement Placement>
struct placement_faults {
  /// Dimensions of a tensor.
  static constexpr std::size_t most_dimensions = 4;

  /// The rules for placements, each a sentence of the compiler.
  [[nodiscard]] static constexpr bool known_axes() noexcept {
    for (const placement_entry& each : entries_of<Placement>)
      if (each.over > axis::shard_replica || each.over == axis::pipeline) return false;
    return true;
  }
  [[nodiscard]] static constexpr bool one_each() noexcept {
    axis_set seen;
    for (const placement_entry& each : entries_of<Placement>) {
      if (each.how == placement_entry::placement_kind::replicate) continue;
      if (seen.has_any(directions_of(each.over))) return false;
      seen.add(directions_of(each.over));
    }
    return true;
  }
  [[nodiscard]] static constexpr bool one_operation() noexcept {
    for (const placement_entry& one : entries_of<Placement>)
      for (const placement_entry& other : entries_of<Placement>)
        if (one.how == placement_entry::placement_kind::partial && other.how == one.how &&
            one.operation != other.operation)
          return false;
    return true;
  }
  [[nodiscard]] static constexpr bool in_range() noexcept {
    for (const placement_entry& each : entries_of<Placement>)
      if (each.dimension >= most_dimensions) return false;
    return true;
  }
};

/// True, or it does not compile and says what is wrong with the list of a placement.
template <class Placement>
constexpr bool check_placement() {
  return true;
}
template <placement Placement>
constexpr bool check_placement() {
  using faults = placement_faults<Placement>;
  static_assert(faults::known_axes(),
                "a placement names an axis of belay::axis whose ranks hold parts of one tensor: data, expert, tensor, "
                "or a part or a product of these; the ranks of a pipeline hold different layers");
  if constexpr (faults::known_axes())
    static_assert(faults::one_each(),
                  "a placement says once what the ranks of an axis hold: one axis stands in it twice, or two that have "
                  "ranks in common, such as replica and expert");
  static_assert(faults::one_operation(),
                "the partials of one placement have one operation: a sum of maxima is not a maximum of sums");
  static_assert(faults::in_range(), "a placement shards a dimension that no tensor has: there are at most 4, from 0");
  return true;
}

/// Whether a parameter, or another tensor with a placement, is cut over the ranks of `Axis`:
/// `belay::sharded_over<belay::axis::expert>(parameter)`.
template <axis Axis, class Tensor>
requires placement<typename Tensor::placement_type>
[[nodiscard]] constexpr bool sharded_over(const Tensor&) noexcept {
  return is_shard_over<typename Tensor::placement_type, Axis>;
}

/// A contiguous part of one dimension: entries `first` to `first + count - 1`.
struct local_part {
  /// The first and the number of elements.
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
