// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Sums of a plan, and what it lacks of a budget.
#pragma once

#include "belay/train/plan.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::size_t rank_plan::folded(tier of, std::size_t plan_item::* what) const noexcept {
  checked_size total;
  for (const plan_item& item : items_) total += item.where_it_is == of ? item.*what : 0;
  return total.saturated();
}

BELAY_DECL auto plan::shortage(const budget& limit) const -> std::optional<plan_shortage> {
  std::optional<plan_shortage> worst;
  for (std::size_t kind = 0; kind < tier_count; ++kind) {
    const tier of = static_cast<tier>(kind);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::size_t needed = ranks_[r].peak_bytes(of);
      // Without a budget the limit is the largest size of an object.
      const std::size_t most = limit[of] < largest_size ? limit[of] : largest_size;
      if (needed <= most) continue;
      if (worst && needed - most <= worst->needed_bytes - worst->budget_bytes) continue;
      worst = plan_shortage{of, static_cast<int>(r), needed, most};
    }
  }
  return worst;
}

BELAY_DECL std::vector<std::string> plan::purposes(tier of) const {
  std::vector<std::string> out;
  for (const rank_plan& rank : ranks_) {
    for (const plan_item& item : rank.items()) {
      if (item.where_it_is == of && !holds(out, item.purpose)) out.push_back(item.purpose);
    }
  }
  return out;
}

BELAY_DECL bool plan::holds(const std::vector<std::string>& list, const std::string& wanted) noexcept {
  for (const std::string& each : list) {
    if (each == wanted) return true;
  }
  return false;
}

}  // namespace belay::inline BELAY_ABI
