// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which purposes of a tier have a colour of their own: the largest of the plan, in its order, and the same in all
// pictures of the tier.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

class tier_colours {
 public:
  static constexpr std::size_t most = 8;
  static constexpr std::size_t rest = 9;  // of what has none

  tier_colours(const report_subject& subject, const report_tier_rows& tier) noexcept
      : subject_(&subject), tier_(&tier) {}

  /// Of row `row` of the subject's memory, which is the tier's; `most` where it has none.
  [[nodiscard]] std::size_t of(std::size_t row) const noexcept {
    if (larger_than(row) >= most) return most;
    std::size_t out = 0;
    for (std::size_t before = tier_->first; before < row; ++before) out += larger_than(before) < most ? 1 : 0;
    return out;
  }

 private:
  // Rows with more bytes in the plan.
  [[nodiscard]] std::size_t larger_than(std::size_t row) const noexcept {
    const auto planned = [this](std::size_t which) { return subject_->memory[which].planned; };
    std::size_t out = 0;
    for (std::size_t other = tier_->first; other < tier_->first + tier_->count; ++other)
      out += planned(other) > planned(row) || (planned(other) == planned(row) && other < row) ? 1 : 0;
    return out;
  }

  const report_subject* subject_;
  const report_tier_rows* tier_;
};

}  // namespace belay::inline BELAY_ABI
