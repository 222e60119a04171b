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
#include <string>
#include <vector>

#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/bucket/ownership_unit.hpp"

namespace belay::inline BELAY_ABI {

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
  std::size_t add(std::span<const std::size_t> part_elements, where at = where::current()) {
    checked_size elements;
    for (std::size_t part : part_elements) elements += part;
    const auto words = [&] {
      return "parameter number " + std::to_string(parameters_.size()) + " of the norm's table, in " +
             std::to_string(part_elements.size()) + " parts, is";
    };
    static_cast<void>(elements.value(words, at));
    parameters_.push_back({parts_.size(), part_elements.size()});
    for (std::size_t part : part_elements) {
      parts_.push_back({entries_, part});
      entries_ += unit_.count(part);
    }
    for (unsigned k = 0; k < sums_.size(); ++k)
      sums_[k] = (checked_size(sums_[k]) + ownership_unit(k).count(elements.saturated())).saturated();
    widen(unit_for(sums_));
    return parameters_.size() - 1;
  }

  /// The unit of elements that has one entry, and one owner where optimizer state is sharded: the buckets are made with
  /// it.
  [[nodiscard]] ownership_unit unit() const noexcept { return unit_; }
  /// Takes a larger unit than the parameters need: that of a model of which they are a part.
  void widen(ownership_unit unit) noexcept {
    if (unit.k() <= unit_.k()) return;
    unit_ = unit;
    entries_ = 0;
    for (range& part : parts_) {
      part.first = entries_;
      entries_ += unit_.count(part.count);
    }
  }
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
  [[nodiscard]] double fold(std::size_t parameter, std::span<const double> table) const noexcept {
    const range parts = parameters_[parameter];
    double squares = 0;
    for (std::size_t part = parts.first; part < parts.first + parts.count; ++part) {
      const range held = parts_[part];
      for (std::size_t entry = 0; entry < unit_.count(held.count); ++entry) squares += table[held.first + entry];
    }
    return squares;
  }

 private:
  struct range {
    std::size_t first = 0;
    std::size_t count = 0;
  };

  // The smallest unit with which whole parameters need at most `most_entries`.
  [[nodiscard]] static ownership_unit unit_for(std::span<const std::uint64_t> entries) noexcept {
    unsigned k = 0;
    while (k < ownership_unit::largest_k && entries[k] > most_entries) ++k;
    return ownership_unit(k);
  }

  std::vector<range> parameters_;  // their parts
  std::vector<range> parts_;       // their first entry and their elements
  std::size_t entries_ = 0;
  ownership_unit unit_;
  std::array<std::uint64_t, ownership_unit::largest_k + 1> sums_{};  // by k: entries of whole parameters
};

}  // namespace belay::inline BELAY_ABI
