// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the sums of squares of every parameter of the model stand in one table, an entry for each unit of 2^k chunks. k
// is the smallest with which the whole parameters need at most 8 MiB, so it follows from the model alone. Parameters
// that are held in parts have up to one entry more for each part.
// IWYU pragma: private, include "belay/train/clip.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/placement.hpp"

namespace belay::inline BELAY_ABI {

/// The elements of every part, in the order of expert and tensor coordinates; which part this rank holds; and whether
/// it counts there, which of the ranks of a tensor axis that hold the same the first does.
struct norm_parts {
  std::vector<std::size_t> elements;
  std::size_t mine = 0;
  norm_share share = norm_share::counted_here;
};

/// In which parts the ranks of a stage hold a parameter of `shape`, and which of them counts in the norm.
template <placement Placement>
[[nodiscard]] norm_parts norm_parts_of(std::span<const std::size_t> shape, const axes& mesh, const coordinate& here) {
  constexpr axis_set cut = cut_directions<Placement>();
  norm_parts out;
  coordinate each = here;
  for (int e = 0; e < (cut.has(axis::expert) ? mesh.expert : 1); ++e)
    for (int t = 0; t < (cut.has(axis::tensor) ? mesh.tensor : 1); ++t) {
      if (cut.has(axis::expert)) each.expert = e;
      if (cut.has(axis::tensor)) each.tensor = t;
      if (each == here) out.mine = out.elements.size();
      out.elements.push_back(local_box<Placement>(shape, mesh, each).elements());
    }
  if (!cut.has(axis::tensor) && here.tensor != 0) out.share = norm_share::counted_elsewhere;
  return out;
}

/// The table of all trainable parameters of the whole model, in model order, with all their parts: equal on all ranks.
class norm_table {
 public:
  /// The entries to which the unit keeps a model whose parameters are held whole: 8 MiB of them.
  static constexpr std::size_t most_entries = (std::size_t{8} << 20) / sizeof(double);

  /// Adds a parameter of one part, which one or more ranks hold. Returns its number.
  std::size_t add(std::size_t elements, where at = where::current()) {
    return add(std::span<const std::size_t>(&elements, 1), at);
  }

  /// Adds a parameter that is held in parts of these sizes. Returns its number. Throws `size_error` where it is more
  /// than any memory holds.
  std::size_t add(std::span<const std::size_t> part_elements, where at = where::current());

  /// Another table of the whole model has parameter `number` too, and counts its entries.
  void count_elsewhere(std::size_t number) noexcept;

  /// Parameters that are added from now on are of this stage of a pipeline.
  void begin_stage(std::size_t number) noexcept { stage_ = number; }
  /// Finds which of the ranks of `ranks`, a pipeline, holds which stage, where ranks may hold several: all parameters
  /// are then folded in the order of the stages. Collective over them.
  template <can_all_reduce<std::uint64_t> Group>
  void find_holders(const Group& ranks, where at = where::current()) {
    std::uint64_t stages[1] = {0};
    for (const table_range& each : parameters_) stages[0] = greater_of<std::uint64_t>(stages[0], each.stage + 1);
    if (ranks.size() > 1) control_of(ranks).all_reduce(std::span<std::uint64_t>(stages), maximum, at);
    std::vector<std::uint64_t> held(static_cast<std::size_t>(stages[0]));  // by a rank, from 1
    for (const table_range& each : parameters_) held[each.stage] = static_cast<std::uint64_t>(ranks.rank()) + 1;
    if (ranks.size() > 1) control_of(ranks).all_reduce(std::span<std::uint64_t>(held), maximum, at);
    holders_.assign(held.begin(), held.end());
  }
  /// The rank that holds each stage, from 1; 0 where that has no parameters. Empty: rank r holds stage r.
  [[nodiscard]] std::span<const std::uint64_t> holders() const noexcept { return holders_; }

  /// The unit of elements that has one entry, and one owner where optimizer state is sharded: the buckets are made with
  /// it.
  [[nodiscard]] ownership_unit unit() const noexcept { return unit_; }
  /// Takes a larger unit than the parameters need: that of a model of which they are a part.
  void widen(ownership_unit unit) noexcept;
  /// Takes the unit of a whole model whose parts are in the tables of the ranks of `stages`. Collective over them.
  template <can_all_reduce<std::uint64_t> Group>
  void widen(const Group& stages, where at = where::current()) {
    std::array<std::uint64_t, ownership_unit::largest_k + 1> all = sums_;
    if (stages.size() > 1) control_of(stages).all_reduce(std::span<std::uint64_t>(all), sum, at);
    widen(unit_for(all));
  }

  [[nodiscard]] std::size_t parameters() const noexcept { return parameters_.size(); }
  [[nodiscard]] std::size_t entries() const noexcept { return entries_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return entries_ * sizeof(double); }

  [[nodiscard]] bool has(std::size_t parameter, std::size_t part) const noexcept {
    return parameter < parameters_.size() && part < parameters_[parameter].count;
  }
  /// The first entry of a part, and its elements.
  [[nodiscard]] std::size_t first_entry(std::size_t parameter, std::size_t part) const noexcept {
    return parts_[parameters_[parameter].first + part].first;
  }
  [[nodiscard]] std::size_t elements(std::size_t parameter, std::size_t part) const noexcept {
    return parts_[parameters_[parameter].first + part].count;
  }

  /// Sum of squares of one parameter, its entries added in order.
  [[nodiscard]] double fold(std::size_t parameter, std::span<const double> table) const noexcept;
  [[nodiscard]] std::size_t stage_of(std::size_t parameter) const noexcept { return parameters_[parameter].stage; }

 private:
  struct table_range {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t stage = 0;  // of a parameter
  };

  // The smallest unit with which whole parameters need at most `most_entries`.
  [[nodiscard]] static ownership_unit unit_for(std::span<const std::uint64_t> entries) noexcept;

  std::vector<table_range> parameters_;  // their parts
  std::vector<table_range> parts_;       // their first entry and their elements
  std::vector<std::uint64_t> holders_;
  std::size_t stage_ = 0;
  std::size_t entries_ = 0;
  ownership_unit unit_;
  std::array<std::uint64_t, ownership_unit::largest_k + 1> sums_{};  // by k: entries of whole parameters
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/norm_table.ipp"  // IWYU pragma: export
#endif
