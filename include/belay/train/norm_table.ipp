// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The table grows by a parameter or to a larger unit, and is folded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "belay/core/checked_size.hpp"
#include "belay/train/norm_table.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::size_t norm_table::add(std::span<const std::size_t> part_elements, where at) {
  checked_size elements;
  for (std::size_t part : part_elements) elements += part;
  const auto words = [&] {
    return "parameter number " + std::to_string(parameters_.size()) + " of the norm's table, in " +
           std::to_string(part_elements.size()) + " parts, is";
  };
  static_cast<void>(elements.value(words, at));
  parameters_.push_back({parts_.size(), part_elements.size(), stage_});
  for (std::size_t part : part_elements) {
    parts_.push_back({entries_, part, stage_});
    entries_ += unit_.count(part);
  }
  for (unsigned k = 0; k < sums_.size(); ++k)
    sums_[k] = (checked_size(sums_[k]) + ownership_unit(k).count(elements.saturated())).saturated();
  widen(unit_for(sums_));
  return parameters_.size() - 1;
}

BELAY_DECL void norm_table::count_elsewhere(std::size_t number) noexcept {
  std::size_t elements = 0;
  const table_range parts = parameters_[number];
  for (std::size_t part = parts.first; part < parts.first + parts.count; ++part) elements += parts_[part].count;
  for (unsigned k = 0; k < sums_.size(); ++k) sums_[k] -= lesser_of(sums_[k], ownership_unit(k).count(elements));
}

BELAY_DECL void norm_table::widen(ownership_unit unit) noexcept {
  if (unit.k() <= unit_.k()) return;
  unit_ = unit;
  entries_ = 0;
  for (table_range& part : parts_) {
    part.first = entries_;
    entries_ += unit_.count(part.count);
  }
}

BELAY_DECL double norm_table::fold(std::size_t parameter, std::span<const double> table) const noexcept {
  const table_range parts = parameters_[parameter];
  double squares = 0;
  for (std::size_t part = parts.first; part < parts.first + parts.count; ++part) {
    const table_range held = parts_[part];
    for (std::size_t entry = 0; entry < unit_.count(held.count); ++entry) squares += table[held.first + entry];
  }
  return squares;
}

BELAY_DECL ownership_unit norm_table::unit_for(std::span<const std::uint64_t> entries) noexcept {
  unsigned k = 0;
  while (k < ownership_unit::largest_k && entries[k] > most_entries) ++k;
  return ownership_unit(k);
}

}  // namespace belay::inline BELAY_ABI
