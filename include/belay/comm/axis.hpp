// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The axes of a mesh: their names, by which placements and groups say which ranks they mean, how many ranks each has,
// and where a rank is along them. The arithmetic is constexpr. A rehearsed body that asks where its rank is asks a
// question, which is noted.
//
//   using stacked = belay::shard<0, belay::axis::expert>;            // cut over the ranks of the expert axis
//   belay::all_reduce(mesh.group(belay::axis::data), grad, belay::sum);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// An axis of a mesh. `replica` is data and expert together: the ranks that replicate the dense parameters. Where the
/// ranks of data are cut into shard groups, `shard` is this rank's, `dense_shard` that and expert together, and
/// `shard_replica` the ranks of the same number in every shard group, which hold equal shards. Groups that are made
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
  /// Whether equal shards are held by several ranks along data.
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

/// Which groups bodies ask of their meshes. A rehearsal writes it; a rank that was given one makes those groups with
/// its mesh. Ranks of one world have equal ones: the union over all that were rehearsed.
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

/// Throws `usage_error` if the ranks have asked for different groups: `asked[r]` is rank r's (see `axis`).
BELAY_DECL void check_same_axis(std::span<const std::uint64_t> asked, where at);

namespace rehearsal {

/// The questions that a rehearsed body has asked of its rank, which ranks could answer differently. Ranks that answer
/// alike run the body alike, so that one of them is rehearsed for all.
class rank_questions {
 public:
  /// The body has asked for the rank's number, or its place along an axis.
  void ask_number() noexcept { number_ = true; }
  void ask_place(const axes& shape, axis which) {
    for (shape_asked& each : places_) {
      if (each.shape == shape) return each.along.add(which);
    }
    places_.push_back({shape, {which}});
  }

  /// Whether the ranks `a` and `b` of one world give the same answers.
  [[nodiscard]] bool same(int a, int b) const noexcept {
    if (number_ && a != b) return false;
    for (const shape_asked& each : places_) {
      const coordinate one = coordinate_of(each.shape, a), other = coordinate_of(each.shape, b);
      const auto asked = [&](axis which) { return each.along.has(which); };
      const bool plane = asked(axis::replica) || asked(axis::dense_shard);
      const bool data = asked(axis::data) || asked(axis::shard) || asked(axis::shard_replica);
      if (asked(axis::pipeline) && one.pipeline != other.pipeline) return false;
      if ((data || plane) && one.data != other.data) return false;
      if ((asked(axis::expert) || plane) && one.expert != other.expert) return false;
      if (asked(axis::tensor) && one.tensor != other.tensor) return false;
    }
    return true;
  }

 private:
  struct shape_asked {
    axes shape;
    axis_set along;
  };
  std::vector<shape_asked> places_;
  bool number_ = false;
};

/// A number of a rank along an axis; in a rehearsal reading it is a question.
class asked_number {
 public:
  /// A number that notes in `asked` that it was read; null: it is no question.
  asked_number(std::shared_ptr<rank_questions> asked, const axes& shape, axis which, int value) noexcept
      : asked_(std::move(asked)), shape_(shape), which_(which), value_(value) {}
  operator int() const {
    if (asked_ != nullptr) asked_->ask_place(shape_, which_);
    return value_;
  }

 private:
  std::shared_ptr<rank_questions> asked_;
  axes shape_;
  axis which_;
  int value_;
};

/// The coordinate of a rank, each number of which is a question of its own.
struct asked_coordinate {
  /// Numbers that note that they were read.
  asked_number pipeline, data, expert, tensor;

  /// All of them, which counts as a question for each.
  operator coordinate() const { return {pipeline, data, expert, tensor}; }
};

/// The coordinate of rank `number` in a mesh of that shape, whose numbers note in `asked` that they were read.
[[nodiscard]] inline asked_coordinate coordinate_asked(const std::shared_ptr<rank_questions>& asked, const axes& shape,
                                                       int number) {
  const coordinate here = coordinate_of(shape, number);
  return {{asked, shape, axis::pipeline, here.pipeline},
          {asked, shape, axis::data, here.data},
          {asked, shape, axis::expert, here.expert},
          {asked, shape, axis::tensor, here.tensor}};
}

}  // namespace rehearsal

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/axis.ipp"  // IWYU pragma: export
#endif
