// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks in a grid of four axes. The expert axis also replicates dense parameters, so a dense parameter is reduced over
// data x expert (`replicas`). A mesh has the groups of one rank, each made when it is first asked for.
//
//   belay::mesh mesh(rank, {.data = 2, .expert = 2});
//   belay::all_reduce(mesh.replicas(), gradients, belay::sum);   // data: device memory where the backend has it
//   belay::all_reduce(mesh.control(), counts, belay::sum);       // what ranks agree on: host memory
//   const int stage = mesh.coordinate().pipeline;
#pragma once

#include <array>
#include <concepts>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// One rank's view of the grid: its place and its groups. Made by every rank of the world with the same axes. A
/// group's ranks are ordered by their place along the axis. The groups are handles, which copies of a mesh share; the
/// rank must outlive the mesh.
///
/// A group is made by the first call that asks for it. That is collective over the world: all ranks ask for the same
/// groups in the same program order, whether or not each uses them. A difference is a `usage_error` on all ranks where
/// BELAY_CHECKS is 2. What a rehearsal has asked for is made with the mesh, in the order of `axis`.
/// Axes with equal sets of ranks share one group, also where that is all ranks: what is started along an axis is no
/// part of the order of `control()` and `world()`. A rank that is alone takes nothing of the backend.
class mesh {
 public:
  using group_type = belay::group;
  using control_type = belay::group;

  /// Throws `usage_error` if the axes do not multiply to the world's size.
  mesh(belay::rank& of, const axes& shape, where at = where::current());
  /// Makes the groups of `asked` now. Collective if there are any.
  mesh(belay::rank& of, const axes& shape, axis_set asked, where at = where::current());
  /// Of a backend's own rank, as `world.run` gives it: the argument of a body.
  template <class R>
    requires(!std::same_as<R, belay::rank>)
  mesh(R& own, const axes& shape, where at = where::current()) : mesh(made_of(own), shape, {}, at) {}
  template <class R>
    requires(!std::same_as<R, belay::rank>)
  mesh(R& own, const axes& shape, axis_set asked, where at = where::current())
      : mesh(made_of(own), shape, asked, at) {}

  /// The rank that it was made of, the ranks along each axis, and this rank's place.
  [[nodiscard]] belay::rank& rank() const noexcept { return *rank_; }
  [[nodiscard]] const axes& shape() const noexcept { return shape_; }
  [[nodiscard]] const rehearsal::asked_coordinate& coordinate() const noexcept { return place_; }
  /// This rank's place in the mesh, for a library whose sizes are computed for all ranks; see `layout_rank`.
  [[nodiscard]] const belay::coordinate& layout_coordinate() const noexcept { return here_; }

  /// All ranks, in rank order, with a communicator of host memory whatever the backend: votes, norms, counts, hashes.
  [[nodiscard]] const belay::group& control() const noexcept { return groups_->control; }
  /// All ranks, in rank order.
  [[nodiscard]] const belay::group& world() const noexcept { return groups_->world; }
  /// The group along an axis.
  [[nodiscard]] const belay::group& group(axis which, where at = where::current()) const;
  /// The stages of this rank's pipeline; a rank's number in it is its stage.
  [[nodiscard]] const belay::group& pipeline(where at = where::current()) const { return group(axis::pipeline, at); }
  [[nodiscard]] const belay::group& data(where at = where::current()) const { return group(axis::data, at); }
  [[nodiscard]] const belay::group& expert(where at = where::current()) const { return group(axis::expert, at); }
  [[nodiscard]] const belay::group& tensor(where at = where::current()) const { return group(axis::tensor, at); }
  /// The ranks that replicate this rank's dense parameters: data x expert, data slowest.
  [[nodiscard]] const belay::group& replicas(where at = where::current()) const { return group(axis::replica, at); }
  /// The ranks of data that divide what belongs to experts among them: a shard group, or all.
  [[nodiscard]] const belay::group& shards(where at = where::current()) const { return group(axis::shard, at); }
  /// Those that divide dense parameters: a shard group x expert, the shard group slowest.
  [[nodiscard]] const belay::group& dense_shards(where at = where::current()) const {
    return group(axis::dense_shard, at);
  }
  /// Those that hold the same shards, one of every shard group.
  [[nodiscard]] const belay::group& shard_replicas(where at = where::current()) const {
    return group(axis::shard_replica, at);
  }

  /// The axes whose groups have been made.
  [[nodiscard]] axis_set asked() const noexcept { return groups_->asked; }

 private:
  struct groups {
    groups(belay::group all, belay::group control_group)
        : world(std::move(all)), control(std::move(control_group)) {}

    belay::group world;
    belay::group control;
    std::array<std::optional<belay::group>, all_axes.size()> along;
    std::vector<std::pair<std::vector<int>, belay::group>> of_ranks;
    axis_set asked;
  };

  template <class R>
  [[nodiscard]] static std::shared_ptr<belay::rank> made_of(R& own) {
    static_assert(backend_rank<R>, "a mesh is made of a rank: the argument of the body that a world runs");
    if constexpr (backend_rank<R>) return std::make_shared<belay::rank>(own);
  }
  // Of a rank that the mesh keeps.
  mesh(std::shared_ptr<belay::rank> kept, const axes& shape, axis_set asked, where at);

  // The same on all ranks: whether ranks along two axes are the same depends on the mesh's shape alone.
  [[nodiscard]] belay::group make(axis which, const where& at) const;
  void expect_same_on_all(axis which, const where& at) const;

  std::shared_ptr<belay::rank> kept_;  // where it was made of a backend's
  belay::rank* rank_;
  axes shape_;
  rehearsal::asked_coordinate place_;
  belay::coordinate here_;
  std::shared_ptr<groups> groups_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/mesh.ipp"  // IWYU pragma: export
#endif
