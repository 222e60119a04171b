// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// From a placement and a place in the mesh: the box of a tensor that a rank holds, and which ranks hold the same.
//
//   using both = belay::placed<belay::shard<0, belay::axis::expert>, belay::shard<1, belay::axis::tensor>>;
//   const belay::tensor_box mine = belay::local_box<both>(shape, mesh.shape(), mesh.coordinate());
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "belay/comm/axis.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/box.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/placement.hpp"

namespace belay::inline BELAY_ABI {

/// The box of a tensor of `shape` that the rank at `here` of a mesh holds, where every cut is even. Each entry cuts a
/// dimension that the tensor has.
[[nodiscard]] inline tensor_box local_box(std::span<const placement_entry> entries, std::span<const std::size_t> shape,
                                          const axes& mesh, const coordinate& here) {
  tensor_box out = whole_box(shape);
  for (const placement_entry& each : entries) {
    if (!each.cuts()) continue;
    const axis_place place = place_along(mesh, here, each.over);
    box_side& side = out.sides[each.dimension];
    const local_part mine =
        even_part(side.count(), static_cast<std::size_t>(place.count), static_cast<std::size_t>(place.number));
    side = {side.first + mine.first, side.first + mine.first + mine.count};
  }
  return out;
}
template <placement Placement>
[[nodiscard]] tensor_box local_box(std::span<const std::size_t> shape, const axes& mesh, const coordinate& here) {
  return local_box(entries_of<Placement>, shape, mesh, here);
}

/// A mesh that has a shape, and a place in it for this rank.
template <class Mesh>
concept has_place = requires(const Mesh& mesh) {
  { mesh.shape() } -> std::convertible_to<axes>;
  { mesh.layout_coordinate() } -> std::convertible_to<coordinate>;
};

/// A mesh with a place for this rank, whose groups move tensors.
template <class Mesh>
concept tensor_mesh = has_place<Mesh> && requires(const Mesh& mesh, axis which, where at) {
  typename Mesh::group_type;
  { mesh.group(which, at) } -> std::convertible_to<const typename Mesh::group_type&>;
};

/// The box of a tensor of `shape` that this rank of a mesh holds, where every cut is even. In a rehearsal it asks for
/// the numbers along the axes that cut, and no others.
template <placement Placement, has_place Mesh>
[[nodiscard]] tensor_box local_box(std::span<const std::size_t> shape, const Mesh& mesh) {
  if constexpr (requires { mesh.coordinate(); }) {
    const auto ask = [](const auto& number) { static_cast<void>(static_cast<int>(number)); };
    const auto& asked = mesh.coordinate();
    constexpr axis_set along = cut_directions<Placement>();
    if constexpr (along.has(axis::shard) || along.has(axis::shard_replica)) ask(asked.data);
    if constexpr (along.has(axis::expert)) ask(asked.expert);
    if constexpr (along.has(axis::tensor)) ask(asked.tensor);
  }
  return local_box<Placement>(shape, mesh.shape(), mesh.layout_coordinate());
}

/// Whether the boxes of all ranks along the expert axis have as many elements, so that their memory is laid out alike.
template <placement Placement>
[[nodiscard]] bool alike_along_experts(std::span<const std::size_t> shape, const axes& mesh, coordinate here) {
  const std::size_t own = local_box<Placement>(shape, mesh, here).elements();
  for (here.expert = 0; here.expert < mesh.expert; ++here.expert)
    if (local_box<Placement>(shape, mesh, here).elements() != own) return false;
  return true;
}

/// Of `count` ranks that keep the same, the number of this one.
struct copy_place {
  /// This rank's number among those that hold the same box, and how many they are.
  std::size_t number = 0;
  std::size_t count = 1;

  friend constexpr bool operator==(const copy_place&, const copy_place&) = default;

  /// The part that this rank writes of `elements` that all of the ranks keep: an even part where there are
  /// `divided_from` bytes or more for each of them, else all or nothing, by `turn`, which is the same on them all.
  /// Together they write every element once.
  [[nodiscard]] constexpr local_part written(std::size_t elements, std::size_t element_bytes,
                                             std::size_t turn) const noexcept {
    if (elements * element_bytes >= divided_from * count) return even_part(elements, count, number);
    return {0, turn % count == number ? elements : 0};
  }

  /// Bytes for each of the ranks that keep a box, from which on they write parts of it.
  static constexpr std::size_t divided_from = std::size_t{1} << 20U;
};

/// Which ranks of the mesh keep what the one at `here` keeps of a tensor that is cut along the directions `cut`: those
/// that differ from it along the others. Pipeline stages have tensors of their own. What ZeRO has divided, each rank of
/// a shard group has a shard of.
enum class kept_part : std::uint8_t { local_part, shard };
[[nodiscard]] constexpr copy_place copies_of(const axes& mesh, const coordinate& here, axis_set cut,
                                             kept_part what) noexcept {
  if (what == kept_part::shard) cut.add(directions_of(axis::dense_shard));
  copy_place out;
  for (const axis each : {axis::shard_replica, axis::shard, axis::expert, axis::tensor}) {
    if (cut.has(each)) continue;
    const axis_place place = place_along(mesh, here, each);
    out.number = out.number * static_cast<std::size_t>(place.count) + static_cast<std::size_t>(place.number);
    out.count *= static_cast<std::size_t>(place.count);
  }
  return out;
}

/// The ranks among which the gradients of a tensor that is cut along `cut` are reduced: all that have other samples.
/// Those of a tensor axis have the same ones, and each the whole gradient of its part.
[[nodiscard]] constexpr axis reduced_over(axis_set cut) noexcept {
  return cut.has(axis::expert) ? axis::data : axis::replica;
}
/// Of those, the ones that divide it where the mesh has shard groups.
[[nodiscard]] constexpr axis divided_over(axis_set cut) noexcept {
  return cut.has(axis::expert) ? axis::shard : axis::dense_shard;
}

}  // namespace belay::inline BELAY_ABI
