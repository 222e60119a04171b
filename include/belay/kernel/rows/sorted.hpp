// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Counting, scanning, sorting and selecting as work of one thread, in the order of a stream: what a device does with
// all its threads where its kit has memory for that.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// counts[b] = how many values are b. Every value is at least 0 and below `counts.size()`.
struct counted_values {
  /// The values that are counted, and the counts.
  view<const std::int32_t, 1> values;
  view<std::int64_t, 1> counts;
  /// All of it.
  BELAY_HD void operator()() const noexcept {
    for (std::size_t b = 0; b < counts.size(); ++b) counts[b] = 0;
    for (std::size_t i = 0; i < values.size(); ++i) ++counts[static_cast<std::size_t>(values[i])];
  }
};

/// sums[i] = counts[0] + ... + counts[i - 1]. The two may be the same.
struct scanned_counts {
  /// The counts that are added, and the sums before each.
  view<const std::int64_t, 1> counts;
  view<std::int64_t, 1> sums;
  /// All of it.
  BELAY_HD void operator()() const noexcept {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const std::int64_t one = counts[i];
      sums[i] = sum;
      sum += one;
    }
  }
};

/// places[i] = where keys[i] stands when the keys are sorted stably. Every key is at least 0 and below `limit`.
struct sorted_places {
  /// The keys, what they are below, and their places.
  view<const std::int32_t, 1> keys;
  std::size_t limit;
  view<std::int32_t, 1> places;
  /// All of it: it needs no memory, and so passes over the keys `limit` times.
  BELAY_HD void operator()() const noexcept {
    std::int32_t next = 0;
    for (std::size_t key = 0; key < limit; ++key)
      for (std::size_t i = 0; i < keys.size(); ++i)
        if (static_cast<std::size_t>(keys[i]) == key) places[i] = next++;
  }
};

/// The positions of the values that are not negative, in ascending order, and how many there are.
struct selected_positions {
  /// The values that are looked at, the positions (as many as there are values), and their number.
  view<const std::int32_t, 1> values;
  view<std::int32_t, 1> positions;
  std::int64_t* count;
  /// All of it.
  BELAY_HD void operator()() const noexcept {
    std::size_t found = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (values[i] >= 0) positions[found++] = static_cast<std::int32_t>(i);
    *count = static_cast<std::int64_t>(found);
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
