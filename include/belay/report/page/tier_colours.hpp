// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which purposes of a tier have a colour of their own: the largest of the plan. A purpose has one colour, whatever the
// tier and the picture; where all tiers together have more purposes than there are colours, some share one, but never
// in one picture.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/report/page/history.hpp"
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

class tier_colours {
 public:
  static constexpr std::size_t most = 8;   // of a tier
  static constexpr std::size_t rest = 9;   // of what has none
  static constexpr std::size_t none = 99;  // of no picture

  explicit tier_colours(const report_subject& subject) noexcept
      : subject_(&subject), rows_(lesser_of(subject.memory.size(), report_history::most_rows)) {
    colours_.fill(none);
    for (std::size_t first = 0, end = 0; first < rows_; first = end) {
      while (end < rows_ && at(end).tier == at(first).tier) ++end;
      for (std::size_t row = first; row < end; ++row)
        if (is_large(row)) inherit(row);
      for (std::size_t row = first; row < end; ++row)
        if (is_large(row) && colours_[row] == none) choose(row);
    }
  }

  /// Of row `row` of the subject's memory; `none` where it has none.
  [[nodiscard]] std::size_t of(std::size_t row) const noexcept { return row < rows_ ? colours_[row] : none; }

 private:
  // 8 and 9 are those of lines and of the rest.
  static constexpr std::array<std::size_t, 12> all{0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13};

  [[nodiscard]] const report_row& at(std::size_t row) const noexcept { return subject_->memory[row]; }

  // Whether less than `most` rows of its tier have more bytes in the plan.
  [[nodiscard]] bool is_large(std::size_t row) const noexcept {
    std::size_t larger = 0;
    for (std::size_t other = 0; other < subject_->memory.size(); ++other) {
      const std::uint64_t planned = at(other).planned;
      if (at(other).tier == at(row).tier && (planned > at(row).planned || (planned == at(row).planned && other < row)))
        ++larger;
    }
    return larger < most;
  }
  // The colour that its purpose has in a tier before.
  void inherit(std::size_t row) noexcept {
    for (std::size_t before = 0; before < row; ++before)
      if (at(before).purpose == at(row).purpose && colours_[before] != none && !tier_has(row, colours_[before])) {
        colours_[row] = colours_[before];
        return;
      }
  }
  // The first that no tier has, or else the first that this one has not.
  void choose(std::size_t row) noexcept {
    for (const std::size_t colour : all)
      if (std::find(colours_.begin(), colours_.end(), colour) == colours_.end()) {
        colours_[row] = colour;
        return;
      }
    for (const std::size_t colour : all)
      if (!tier_has(row, colour)) {
        colours_[row] = colour;
        return;
      }
  }
  [[nodiscard]] bool tier_has(std::size_t row, std::size_t colour) const noexcept {
    for (std::size_t other = 0; other < rows_; ++other)
      if (at(other).tier == at(row).tier && colours_[other] == colour) return true;
    return false;
  }

  const report_subject* subject_;
  std::size_t rows_;
  std::array<std::size_t, report_history::most_rows> colours_{};  // by row
};

}  // namespace belay::inline BELAY_ABI
