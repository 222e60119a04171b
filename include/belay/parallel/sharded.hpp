// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A tensor over a group of ranks, or over the axes of a mesh: the part held here, and how the other ranks hold the
// rest. The placement is part of the type. It is a view: memory, counts, group and mesh belong to the caller and
// outlive it. Uneven splits are exact: there are counts for each rank, never padding.
//
//   std::vector<std::size_t> counts(ranks);
//   const belay::shard_counts split = belay::even_counts(rows, width, counts);
//   belay::sharded<float, belay::partial<belay::sum>, group> grad{mesh.data(), memory, split};
//   auto mine = belay::redistribute<belay::shard<0>>(std::move(grad));  // a reduce_scatter_v
//   use(mine.local());
//
//   using both = belay::placed<belay::shard<0, belay::axis::expert>, belay::shard<1, belay::axis::tensor>>;
//   belay::sharded<float, both, mesh_type> box{mesh, {8, 64, 32}, memory};  // evenly cut
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "belay/core/box.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter_shape.hpp"
#include "belay/parallel/placement.hpp"

namespace belay::inline BELAY_ABI {

/// How many elements each rank of a group holds, in rank order. The parts lie one after the other. The counts are the
/// caller's.
class shard_counts {
 public:
  /// One count a rank of the group; the memory outlives it.
  explicit shard_counts(std::span<const std::size_t> counts) noexcept : counts_(counts) {}

  /// One count a rank.
  [[nodiscard]] std::span<const std::size_t> counts() const noexcept { return counts_; }
  /// The sum of the counts. It does not wrap around.
  [[nodiscard]] std::size_t total() const noexcept { return before(counts_.size()); }
  /// The part of rank `rank`.
  [[nodiscard]] local_part part(std::size_t rank) const noexcept { return {before(rank), counts_[rank]}; }

 private:
  [[nodiscard]] std::size_t before(std::size_t rank) const noexcept {
    checked_size sum_of_counts;
    for (std::size_t r = 0; r < rank; ++r) sum_of_counts += counts_[r];
    return sum_of_counts.saturated();
  }
  std::span<const std::size_t> counts_;
};

/// Writes an even split of `total` rows of `row_elements` elements over `counts.size()` ranks into `counts`. Throws
/// `size_error` where those are more than any memory holds.
inline shard_counts even_counts(std::size_t total, std::size_t row_elements, std::span<std::size_t> counts,
                                where at = where::current()) {
  const auto words = [&] {
    return std::to_string(total) + " rows of " + std::to_string(row_elements) + " elements are";
  };
  static_cast<void>((checked_size(total) * row_elements).value(words, at));
  for (std::size_t r = 0; r < counts.size(); ++r) counts[r] = even_part(total, counts.size(), r).count * row_elements;
  return shard_counts{counts};
}

/// `local` is the whole for `replicate` and `partial`, and this rank's part for `shard<0, Axis>`: row-major, split
/// between rows. Move-only, because a redistribution consumes its source: to reduce the same `partial` twice would be
/// wrong.
template <class T, class Placement, class Group>
class sharded {
  static_assert(axis_placement<Placement>,
                "the placement of a sharded tensor is belay::replicate, belay::shard<Dim, Axis> or "
                "belay::partial<Op, Axis>; a belay::placed<...> of these is over a mesh and not over a group");
  static_assert(check_placement<Placement>());

 public:
  using value_type = T;
  using placement_type = Placement;
  using group_type = Group;

  /// `counts` is how the group splits the tensor, or would split it: one entry for each rank.
  sharded(const Group& group, std::span<T> local, shard_counts counts, where at = where::current())
      : group_(group), local_(local), counts_(counts) {
    if (counts.counts().size() != ranks())
      throw usage_error(
          "a split over " + std::to_string(counts.counts().size()) + " ranks, on a group of " + std::to_string(ranks()),
          at);
    const auto words = [&] { return "the parts of " + std::to_string(ranks()) + " ranks are together"; };
    static_cast<void>((checked_size(counts.total()) * sizeof(T)).value(words, at));
    if (local.size() != needed())
      throw usage_error("this rank's part has " + std::to_string(needed()) + " elements, the memory given has " +
                            std::to_string(local.size()),
                        at);
  }
  sharded(sharded&&) noexcept = default;
  sharded& operator=(sharded&&) noexcept = default;

  /// A handle: copies of it are the same group.
  [[nodiscard]] const Group& group() const noexcept { return group_; }
  [[nodiscard]] std::span<T> local() const noexcept { return local_; }
  [[nodiscard]] shard_counts counts() const noexcept { return counts_; }
  [[nodiscard]] std::size_t global_size() const noexcept { return counts_.total(); }
  /// The part of the whole that the split gives to this rank.
  [[nodiscard]] local_part own() const noexcept { return counts_.part(static_cast<std::size_t>(group_.rank())); }

 private:
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(group_.size()); }
  [[nodiscard]] std::size_t needed() const noexcept { return is_shard<Placement> ? own().count : global_size(); }

  Group group_;
  std::span<T> local_;
  shard_counts counts_;
};

/// A tensor of which each rank of a mesh holds the box that `Placement` gives it, row by row, every cut even. A view:
/// the memory and the mesh outlive it. Move-only, as a redistribution consumes it.
template <class T, class Placement, tensor_mesh Mesh>
class sharded<T, Placement, Mesh> {
  static_assert(placement<Placement>,
                "the placement of a sharded tensor is belay::replicate, belay::shard<Dim, Axis> or "
                "belay::partial<Op, Axis>, or belay::placed<...> of these");
  static_assert(check_placement<Placement>());

 public:
  using value_type = T;
  using placement_type = Placement;
  using mesh_type = Mesh;

  /// `shape` is that of the whole tensor. Throws usage_error where the memory is not the box's, or a dimension is cut
  /// that the tensor does not have.
  sharded(const Mesh& mesh, const parameter_shape& shape, std::span<T> local, where at = where::current())
      : mesh_(&mesh), shape_(shape), local_(local) {
    for (const placement_entry& each : entries_of<Placement>)
      if (each.cuts() && each.dimension >= shape.rank())
        throw usage_error("a tensor of " + std::to_string(shape.rank()) + " dimensions cannot be cut along dimension " +
                              std::to_string(each.dimension),
                          at);
    const auto words = [&] { return shape_text(shape.extents()) + " elements are"; };
    static_cast<void>((checked_size(shape.size()) * sizeof(T)).value(words, at));
    const tensor_box box = this->box();
    if (local.size() != box.elements())
      throw usage_error("this rank's box " + box.text() + " has " + std::to_string(box.elements()) +
                            " elements, the memory given has " + std::to_string(local.size()),
                        at);
  }
  sharded(sharded&&) noexcept = default;
  sharded& operator=(sharded&&) noexcept = default;

  /// The mesh, the shape of the whole, and this rank's elements.
  [[nodiscard]] const Mesh& mesh() const noexcept { return *mesh_; }
  [[nodiscard]] const parameter_shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::span<T> local() const noexcept { return local_; }
  /// The part of the tensor that is held here; of a partial, an operand of it.
  [[nodiscard]] tensor_box box() const { return local_box<Placement>(shape_.extents(), *mesh_); }

 private:
  const Mesh* mesh_;
  parameter_shape shape_;
  std::span<T> local_;
};

}  // namespace belay::inline BELAY_ABI
