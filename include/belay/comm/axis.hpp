// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The names of a mesh's axes, by which placements and groups say which ranks they mean.
//
//   using stacked = belay::shard<0, belay::axis::expert>;            // cut over the ranks of the expert axis
//   belay::all_reduce(mesh.group(belay::axis::data), grad, belay::sum);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// An axis of a mesh. `replica` is data and expert together: the ranks that replicate the dense parameters. Where the
/// ranks of data are cut into shard groups, `shard` is this rank's, `dense_shard` that and expert together, and
/// `shard_replica` the ranks of the same number in every shard group, which hold equal shares. Groups that are made
/// together are made in this order.
enum class axis : std::uint8_t { pipeline, data, expert, tensor, replica, shard, dense_shard, shard_replica };

/// All of them, in the order in which ranks are numbered.
inline constexpr std::array all_axes{axis::pipeline, axis::data,  axis::expert,      axis::tensor,
                                     axis::replica,  axis::shard, axis::dense_shard, axis::shard_replica};

/// The name, as in flags and texts: "pipeline", "data", ...
[[nodiscard]] constexpr const char* name(axis which) noexcept {
  constexpr const char* names[] = {"pipeline", "data",  "expert",      "tensor",
                                   "replica",  "shard", "dense_shard", "shard_replica"};
  return names[static_cast<std::size_t>(which)];
}

/// Some axes.
class axis_set {
 public:
  constexpr axis_set() = default;
  /// The set of these axes.
  constexpr axis_set(std::initializer_list<axis> all) noexcept {
    for (axis each : all) add(each);
  }

  /// Adds to the set, and asks it.
  constexpr void add(axis which) noexcept { bits_ = static_cast<std::uint8_t>(bits_ | bit(which)); }
  constexpr void add(axis_set others) noexcept { bits_ = static_cast<std::uint8_t>(bits_ | others.bits_); }
  [[nodiscard]] constexpr bool has(axis which) const noexcept { return (bits_ & bit(which)) != 0; }
  [[nodiscard]] constexpr bool has_any(axis_set others) const noexcept { return (bits_ & others.bits_) != 0; }
  [[nodiscard]] constexpr bool has_all(axis_set others) const noexcept {
    return (others.bits_ & ~unsigned{bits_}) == 0;
  }
  [[nodiscard]] constexpr bool empty() const noexcept { return bits_ == 0; }

  friend constexpr bool operator==(axis_set, axis_set) = default;

 private:
  [[nodiscard]] static constexpr unsigned bit(axis which) noexcept { return 1U << static_cast<unsigned>(which); }
  std::uint8_t bits_ = 0;
};

/// The axes of which `which` is made, none of which is made of others: pipeline, expert, tensor, `shard` (within a
/// shard group) and `shard_replica` (across them). Two axes with a common one are no two directions of the mesh.
[[nodiscard]] constexpr axis_set directions_of(axis which) noexcept {
  switch (which) {
    case axis::data: return {axis::shard, axis::shard_replica};
    case axis::replica: return {axis::shard, axis::shard_replica, axis::expert};
    case axis::dense_shard: return {axis::shard, axis::expert};
    default: return {which};
  }
}

}  // namespace belay::inline BELAY_ABI
