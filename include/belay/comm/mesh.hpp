// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks in a grid of four axes. The expert axis also replicates dense parameters, so a dense parameter is reduced over
// data x expert (`replicas`). The arithmetic is constexpr; the class adds the groups of one rank, each made when it is
// first asked for.
//
//   belay::mesh mesh(rank, {.data = 2, .expert = 2});
//   belay::all_reduce(mesh.replicas(), gradients, belay::sum);   // data: device memory where the backend has it
//   belay::all_reduce(mesh.control(), counts, belay::sum);       // what ranks agree on: host memory
//   const int stage = mesh.coordinate().pipeline;
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Ranks along each axis.
struct axes {
  /// Ranks along each axis; 1 where it is not used.
  int pipeline = 1;
  int data = 1;
  int expert = 1;
  int tensor = 1;
  int shard_group = 0;  // neighbours along data that divide parameters and state among them; 0: all of them

  [[nodiscard]] bool operator==(const axes&) const = default;
  /// Whether each axis has a rank at least.
  [[nodiscard]] constexpr bool valid() const noexcept { return pipeline > 0 && data > 0 && expert > 0 && tensor > 0; }
  /// Ranks of a shard group along data.
  [[nodiscard]] constexpr int shards() const noexcept { return shard_group == 0 ? data : shard_group; }
  /// Whether equal shares are held by several ranks along data.
  [[nodiscard]] constexpr bool replicates_shards() const noexcept { return shards() < data; }
  /// Of valid axes; where it is more than any world has it does not wrap round.
  [[nodiscard]] constexpr long long ranks() const noexcept {
    checked_size all = 1;
    for (int axis : {pipeline, data, expert, tensor}) all *= static_cast<std::size_t>(axis);
    return static_cast<long long>(all.fits() ? all.saturated() : largest_size);
  }
  /// "pipeline 2 x data 1 x expert 2 x tensor 1", and ", shard groups of 2" where data is cut into several
  [[nodiscard]] std::string text() const;
};

/// A rank's place along each axis.
struct coordinate {
  /// A rank's place along each axis, from 0.
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

/// A number among those of an axis.
struct axis_place {
  /// The place along the axis, from 0, and how many there are.
  int number = 0;
  int count = 1;

  [[nodiscard]] bool operator==(const axis_place&) const = default;
};

/// Which of the ranks of `ranks_along(shape, place, which)` the one at `place` is, and how many they are.
[[nodiscard]] constexpr axis_place place_along(const axes& shape, const coordinate& place, axis which) noexcept {
  const int shards = shape.shards();
  switch (which) {
    case axis::pipeline: return {place.pipeline, shape.pipeline};
    case axis::data: return {place.data, shape.data};
    case axis::expert: return {place.expert, shape.expert};
    case axis::tensor: return {place.tensor, shape.tensor};
    case axis::replica: return {place.data * shape.expert + place.expert, shape.data * shape.expert};
    case axis::shard: return {place.data % shards, shards};
    case axis::dense_shard: return {place.data % shards * shape.expert + place.expert, shards * shape.expert};
    case axis::shard_replica: return {place.data / shards, shape.data / shards};
  }
  return {};
}

/// The ranks of a group of the rank at `place`, in the order of the axis: those that differ from it along that axis
/// only. Of `axis::replica`, those that replicate its dense parameters: data x expert, data slowest; of
/// `axis::dense_shard` those of them that divide these.
[[nodiscard]] BELAY_DECL std::vector<int> ranks_along(const axes& shape, coordinate place, axis which);

/// `shape` itself. Throws `usage_error` if the axes do not multiply to the world's size, or shard groups are not a part
/// of data.
BELAY_DECL const axes& checked_shape(const axes& shape, int size, where at);

/// A rank that a mesh can be made of: it has a place in the world and groups of any members.
template <class Rank>
concept has_groups = requires(Rank& rank, std::span<const int> members, where at) {
  { rank.number() } -> std::convertible_to<int>;
  { rank.size() } -> std::convertible_to<int>;
  { rank.world() } -> std::convertible_to<typename Rank::group_type>;
  { rank.group(members, at) } -> std::convertible_to<typename Rank::group_type>;
};

/// A rank with host memory of its own beside its data groups: votes, norms, counts and hashes travel there.
template <class Rank>
concept has_control = requires(Rank& rank) {
  { rank.control() } -> std::convertible_to<typename Rank::control_type>;
  requires communicator<typename Rank::control_type>;
}
&&requires(const typename Rank::control_type& group, std::span<const std::uint64_t> in, std::span<std::uint64_t> out,
           where at) {
  group.all_gather(in, out, at);
};

/// The groups of what is no rank, so that the sentence about that is the only one.
struct no_group {};
/// The type of a rank's groups.
template <class Rank>
struct group_of {
  using type = no_group;
};
template <class Rank>
requires requires { typename Rank::group_type; }
struct group_of<Rank> {
  using type = typename Rank::group_type;
};

/// A rank's group for control: that of the world where the backend has none for it.
template <class Rank>
struct control_group {
  using type = typename group_of<Rank>::type;
  /// A group of all ranks over host memory. Collective.
  [[nodiscard]] static type of(Rank& rank) { return rank.world(); }
};
/// Of a rank that has a group for control of its own.
template <has_control Rank>
struct control_group<Rank> {
  using type = typename Rank::control_type;
  /// A group of all ranks over host memory. Collective.
  [[nodiscard]] static type of(Rank& rank) { return rank.control(); }
};

/// The source of a rank's coordinate: a rehearsed rank notes what is read.
template <class Rank>
struct place_of {
  using type = coordinate;
  /// The place of the rank in the mesh.
  [[nodiscard]] static type of(const Rank& rank, const axes& shape) { return coordinate_of(shape, rank.number()); }
};
/// Of a rank that knows its place itself, as those of a rehearsal.
template <class Rank>
requires requires { typename Rank::place_type; }
struct place_of<Rank> {
  using type = typename Rank::place_type;
  /// The place of the rank in the mesh.
  [[nodiscard]] static type of(const Rank& rank, const axes& shape) { return rank.place(shape); }
};

/// Which groups bodies ask of their meshes. The rank of a rehearsal writes it; a rank that has one makes those groups
/// with its mesh. Ranks of one world have equal ones: the union over all that were rehearsed.
class mesh_record {
 public:
  /// Adds the groups that a mesh of that shape was asked for; what was asked for.
  void add(const axes& shape, axis_set asked) {
    for (recorded_mesh& each : entries_) {
      if (each.shape == shape) return each.asked.add(asked);
    }
    entries_.push_back({shape, asked});
  }
  void add(const mesh_record& other) {
    for (const recorded_mesh& each : other.entries_) add(each.shape, each.asked);
  }
  /// A mesh's shape, and what it was asked for.
  struct recorded_mesh {
    axes shape;      ///< ranks along each axis
    axis_set asked;  ///< the axes whose groups were asked for
  };
  /// In the order in which shapes were first added.
  [[nodiscard]] const std::vector<recorded_mesh>& entries() const noexcept { return entries_; }
  [[nodiscard]] axis_set asked(const axes& shape) const noexcept {
    for (const recorded_mesh& each : entries_) {
      if (each.shape == shape) return each.asked;
    }
    return {};
  }

 private:
  std::vector<recorded_mesh> entries_;
};

/// A rank that knows which groups its meshes need: `meshes()` is the record.
template <class Rank>
concept has_mesh_record = requires(Rank& rank) {
  { rank.meshes() } -> std::same_as<mesh_record&>;
};

/// Throws `usage_error` if the ranks have asked for different groups: `asked[r]` is rank r's (see `axis`).
BELAY_DECL void check_same_axis(std::span<const std::uint64_t> asked, where at);

/// One rank's view of the grid: its place and its groups. Made by every rank of the world with the same axes. A
/// group's ranks are ordered by their place along the axis. The groups are handles, which copies of a mesh share; the
/// rank must outlive the mesh.
///
/// A group is made by the first call that asks for it. That is collective over the world: all ranks ask for the same
/// groups in the same program order, whether or not each uses them. A difference is a `usage_error` on all ranks where
/// BELAY_CHECKS is 2. What a rehearsal has asked for is made with the mesh, in the order of `axis`.
/// Axes with equal sets of ranks share one group, also where that is all ranks: what is started along an axis is no
/// part of the order of `control()` and `world()`. A rank that is alone takes nothing of the backend.
template <class Rank>
class mesh {
  static_assert(has_groups<Rank>, "a mesh is made of a rank: the argument of the body that a world runs");

 public:
  using rank_type = Rank;
  using group_type = typename group_of<Rank>::type;
  using control_type = typename control_group<Rank>::type;
  using place_type = typename place_of<Rank>::type;

  /// Throws `usage_error` if the axes do not multiply to the world's size.
  mesh(Rank& rank, axes shape, where at = where::current()) : mesh(rank, shape, recorded(rank, shape), at) {}
  /// Makes the groups of `asked` now. Collective if there are any.
  mesh(Rank& rank, axes shape, axis_set asked, where at = where::current())
      : rank_(&rank),
        shape_(checked_shape(shape, rank.size(), at)),
        place_(place_of<Rank>::of(rank, shape)),
        here_(coordinate_of(shape, layout_rank(rank))),
        groups_(std::make_shared<groups>(rank.world(), control_group<Rank>::of(rank))) {
    for (axis which : all_axes) {
      if (asked.has(which)) static_cast<void>(group(which, at));
    }
  }

  /// The rank that it was made of, the ranks along each axis, and this rank's place.
  [[nodiscard]] Rank& rank() const noexcept { return *rank_; }
  [[nodiscard]] const axes& shape() const noexcept { return shape_; }
  [[nodiscard]] const place_type& coordinate() const noexcept { return place_; }
  /// This rank's place in the mesh, for a library whose sizes are computed for all ranks; see `layout_rank`.
  [[nodiscard]] const belay::coordinate& layout_coordinate() const noexcept { return here_; }

  /// All ranks, in rank order, with a communicator of host memory whatever the backend: votes, norms, counts, hashes.
  [[nodiscard]] const control_type& control() const noexcept { return groups_->control; }
  /// All ranks, in rank order.
  [[nodiscard]] const group_type& world() const noexcept { return groups_->world; }
  /// The group along an axis.
  [[nodiscard]] const group_type& group(axis which, where at = where::current()) const {
    std::optional<group_type>& made = groups_->along[static_cast<std::size_t>(which)];
    if (!made) {
      made.emplace(make(which, at));
      groups_->asked.add(which);
      if constexpr (has_mesh_record<Rank>)
        if (is_rehearsed(groups_->world)) rank_->meshes().add(shape_, {which});
    }
    return *made;
  }
  /// The stages of this rank's pipeline; a rank's number in it is its stage.
  [[nodiscard]] const group_type& pipeline(where at = where::current()) const { return group(axis::pipeline, at); }
  [[nodiscard]] const group_type& data(where at = where::current()) const { return group(axis::data, at); }
  [[nodiscard]] const group_type& expert(where at = where::current()) const { return group(axis::expert, at); }
  [[nodiscard]] const group_type& tensor(where at = where::current()) const { return group(axis::tensor, at); }
  /// The ranks that replicate this rank's dense parameters: data x expert, data slowest.
  [[nodiscard]] const group_type& replicas(where at = where::current()) const { return group(axis::replica, at); }
  /// The ranks of data that divide what belongs to experts among them: a shard group, or all.
  [[nodiscard]] const group_type& shards(where at = where::current()) const { return group(axis::shard, at); }
  /// Those that divide dense parameters: a shard group x expert, the shard group slowest.
  [[nodiscard]] const group_type& dense_shards(where at = where::current()) const {
    return group(axis::dense_shard, at);
  }
  /// Those that hold the same shares, one of every shard group.
  [[nodiscard]] const group_type& shard_replicas(where at = where::current()) const {
    return group(axis::shard_replica, at);
  }

  /// The axes whose groups have been made.
  [[nodiscard]] axis_set asked() const noexcept { return groups_->asked; }

 private:
  struct groups {
    groups(group_type all, control_type control_group) : world(std::move(all)), control(std::move(control_group)) {}

    group_type world;
    control_type control;
    std::array<std::optional<group_type>, all_axes.size()> along;
    std::vector<std::pair<std::vector<int>, group_type>> of_ranks;
    axis_set asked;
  };

  [[nodiscard]] static axis_set recorded(Rank& rank, const axes& shape) {
    if constexpr (has_mesh_record<Rank>)
      if (!is_rehearsed(rank.world())) return rank.meshes().asked(shape);
    return {};
  }

  // The same on all ranks: whether ranks along two axes are the same depends on the mesh's shape alone.
  [[nodiscard]] group_type make(axis which, const where& at) const {
    const std::vector<int> members = ranks_along(shape_, here_, which);
    if (rank_->size() == 1) return groups_->world;
    for (const auto& [ranks, made] : groups_->of_ranks) {
      if (ranks == members) return made;
    }
    if (members.size() > 1) expect_same_on_all(which, at);
    groups_->of_ranks.emplace_back(members, group_of_ranks(members, which, at));
    return groups_->of_ranks.back().second;
  }
  [[nodiscard]] group_type group_of_ranks(const std::vector<int>& members, [[maybe_unused]] axis which,
                                          const where& at) const {
    if constexpr (requires { rank_->group_along(members, shape_, which, at); })
      return rank_->group_along(members, shape_, which, at);
    else
      return rank_->group(members, at);
  }
  void expect_same_on_all([[maybe_unused]] axis which, [[maybe_unused]] const where& at) const {
    if (checked(check_level::across_ranks) && !is_rehearsed(groups_->world)) {
      const std::uint64_t mine[] = {static_cast<std::uint64_t>(which)};
      std::vector<std::uint64_t> all(static_cast<std::size_t>(rank_->size()));
      groups_->control.all_gather(std::span<const std::uint64_t>(mine), std::span(all), at);
      check_same_axis(all, at);
    }
  }

  Rank* rank_;
  axes shape_;
  place_type place_;
  belay::coordinate here_;
  std::shared_ptr<groups> groups_;
};

template <class Rank>
mesh(Rank&, axes) -> mesh<Rank>;
template <class Rank>
mesh(Rank&, axes, where) -> mesh<Rank>;
template <class Rank>
mesh(Rank&, axes, axis_set) -> mesh<Rank>;
template <class Rank>
mesh(Rank&, axes, axis_set, where) -> mesh<Rank>;

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/mesh.ipp"  // IWYU pragma: export
#endif
