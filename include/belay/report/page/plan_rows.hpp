// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The rows of a plan as those of a page.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/report/page/sample.hpp"
#include "belay/train/plan.hpp"

namespace belay::inline BELAY_ABI {

/// The rank whose plan has most in tier device, and of several the first.
[[nodiscard]] inline std::size_t fullest_rank(const plan& planned) {
  std::size_t out = 0;
  for (std::size_t rank = 1; rank < planned.ranks().size(); ++rank)
    if (planned.ranks()[rank].peak_bytes(tier::device) > planned.ranks()[out].peak_bytes(tier::device)) out = rank;
  return out;
}

/// A row for each purpose of each tier that the plan has bytes in.
[[nodiscard]] inline std::vector<report_row> report_rows(const plan& planned, std::size_t shown_rank) {
  std::vector<report_row> out;
  for (std::size_t number = 0; number < tier_count; ++number) {
    const tier of = static_cast<tier>(number);
    for (const std::string& purpose : planned.purposes(of)) {
      report_row row{name(of), purpose};
      checked_size total;
      for (std::size_t rank = 0; rank < planned.ranks().size(); ++rank) {
        checked_size bytes;
        for (const plan_item& item : planned.ranks()[rank].items())
          if (item.where_it_is == of && item.purpose == purpose) bytes += item.bytes;
        const std::uint64_t here = bytes.saturated();
        total += bytes.saturated();
        row.smallest = rank == 0 ? here : lesser_of(row.smallest, here);
        row.largest = greater_of(row.largest, here);
        if (rank == shown_rank) row.planned = here;
      }
      row.total = total.saturated();
      if (row.total > 0) out.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
