// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks in a grid of four axes. The expert axis also replicates dense parameters, so a dense parameter is reduced over
// data x expert (`replicas`). The arithmetic is constexpr; the class adds the groups of one rank.
//
//   belay::mesh mesh(rank, {.data = 2, .expert = 2});
//   belay::all_reduce(mesh.replicas(), gradients, belay::sum);
//   const int stage = mesh.coordinate().pipeline;
#pragma once

#include <concepts>
#include <span>
#include <string>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Ranks along each axis.
struct axes {
  int pipeline = 1;
  int data = 1;
  int expert = 1;
  int tensor = 1;

  [[nodiscard]] bool operator==(const axes&) const = default;
  [[nodiscard]] constexpr bool valid() const noexcept { return pipeline > 0 && data > 0 && expert > 0 && tensor > 0; }
  /// Of valid axes; where it is more than any world has it does not wrap round.
  [[nodiscard]] constexpr long long ranks() const noexcept {
    checked_size all = 1;
    for (int axis : {pipeline, data, expert, tensor}) all *= static_cast<std::size_t>(axis);
    return static_cast<long long>(all.fits() ? all.saturated() : largest_size);
  }
  /// "pipeline 2 x data 1 x expert 2 x tensor 1"
  [[nodiscard]] std::string text() const;
};

/// A rank's place along each axis.
struct coordinate {
  int pipeline = 0;
  int data = 0;
  int expert = 0;
  int tensor = 0;

  [[nodiscard]] bool operator==(const coordinate&) const = default;
};

/// The rank at a place: ((pipeline x DATA + data) x EXPERT + expert) x TENSOR + tensor.
[[nodiscard]] constexpr int rank_at(const axes& shape, const coordinate& place) noexcept {
  return ((place.pipeline * shape.data + place.data) * shape.expert + place.expert) * shape.tensor + place.tensor;
}

/// The place of a rank; the inverse of `rank_at`.
[[nodiscard]] constexpr coordinate coordinate_of(const axes& shape, int rank) noexcept {
  coordinate place;
  place.tensor = rank % shape.tensor;
  rank /= shape.tensor;
  place.expert = rank % shape.expert;
  rank /= shape.expert;
  place.data = rank % shape.data;
  place.pipeline = rank / shape.data;
  return place;
}

/// The ranks that differ from `place` along one axis of that length only, in the order of that axis.
[[nodiscard]] BELAY_DECL std::vector<int> ranks_along(const axes& shape, coordinate place, int coordinate::*axis,
                                                      int length);
/// The ranks that replicate the dense parameters of the one at `place`: data x expert, data slowest.
[[nodiscard]] BELAY_DECL std::vector<int> replicas_of(const axes& shape, coordinate place);

/// `shape` itself. Throws `usage_error` if the axes do not multiply to the world's size.
BELAY_DECL const axes& checked_shape(const axes& shape, int size, where at);

/// What a mesh needs of a rank: its place in the world and groups of any members.
template <class Rank>
concept has_groups = requires(Rank& rank, std::span<const int> members, where at) {
  { rank.number() } -> std::convertible_to<int>;
  { rank.size() } -> std::convertible_to<int>;
  { rank.world() } -> std::convertible_to<typename Rank::group_type>;
  { rank.group(members, at) } -> std::convertible_to<typename Rank::group_type>;
};

/// One rank's view of the grid: its place and its group along each axis. Made by every rank of the world with
/// the same axes. A group's ranks are ordered by their place along the axis. The groups are handles; the rank
/// must outlive the mesh.
template <class Rank>
class mesh {
  static_assert(has_groups<Rank>, "a mesh is made of a rank: the argument of the body that a world runs");

 public:
  using rank_type = Rank;
  using group_type = typename Rank::group_type;
  using place_type = belay::coordinate;

  /// Throws `usage_error` if the axes do not multiply to the world's size.
  mesh(Rank& rank, axes shape, where at = where::current())
      : rank_(&rank),
        shape_(checked_shape(shape, rank.size(), at)),
        place_(coordinate_of(shape, rank.number())),
        world_(rank.world()),
        pipeline_(rank.group(ranks_along(shape, place_, &place_type::pipeline, shape.pipeline), at)),
        data_(rank.group(ranks_along(shape, place_, &place_type::data, shape.data), at)),
        expert_(rank.group(ranks_along(shape, place_, &place_type::expert, shape.expert), at)),
        tensor_(rank.group(ranks_along(shape, place_, &place_type::tensor, shape.tensor), at)),
        replicas_(rank.group(replicas_of(shape, place_), at)) {}

  [[nodiscard]] Rank& rank() const noexcept { return *rank_; }
  [[nodiscard]] const axes& shape() const noexcept { return shape_; }
  [[nodiscard]] const place_type& coordinate() const noexcept { return place_; }

  /// All ranks, in rank order.
  [[nodiscard]] const group_type& world() const noexcept { return world_; }
  /// The stages of this rank's pipeline; a rank's number in it is its stage.
  [[nodiscard]] const group_type& pipeline() const noexcept { return pipeline_; }
  [[nodiscard]] const group_type& data() const noexcept { return data_; }
  [[nodiscard]] const group_type& expert() const noexcept { return expert_; }
  [[nodiscard]] const group_type& tensor() const noexcept { return tensor_; }
  /// The ranks that replicate this rank's dense parameters: data x expert, data slowest.
  [[nodiscard]] const group_type& replicas() const noexcept { return replicas_; }

 private:
  Rank* rank_;
  axes shape_;
  place_type place_;
  group_type world_;
  group_type pipeline_;
  group_type data_;
  group_type expert_;
  group_type tensor_;
  group_type replicas_;
};

template <class Rank>
mesh(Rank&, axes) -> mesh<Rank>;
template <class Rank>
mesh(Rank&, axes, where) -> mesh<Rank>;

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/mesh.ipp"  // IWYU pragma: export
#endif
