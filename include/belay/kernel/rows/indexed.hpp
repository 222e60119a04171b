// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rows of a table by their index, and the addition of rows to those of a table in a fixed order: an embedding and its
// backward.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// counts[b] = how many values are b. Every value is at least 0 and below `counts.size()`.
/// Counting, scanning, sorting and selecting as work of one thread, in the order of a stream: what a device does with
/// all its threads where its kit has memory for that.
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

/// out row r = in row index[r / repeat]. With `repeat` = k the index has one entry a token, and out k rows a token. An
/// index that is not below `limit` is noted, and its row is zeros. `out` may be wider.
template <class T, std::integral Index, class Out = T>
struct gather_rows {
  const T* in;
  const Index* index;
  Out* out;
  std::size_t width;
  std::size_t repeat = 1;
  std::size_t limit = ~std::size_t{0};
  findings_note found = {};
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t row) const noexcept {
    const Index of = index[row / repeat];
    if (static_cast<std::size_t>(of) >= limit) {
      if (team.lane == 0) static_cast<void>(found.below(of, limit, row / repeat));
      for_each_pack(team, width, fill<Out>{out + row * width, Out{}});
      return;
    }
    for_each_pack(team, width, copy<T, Out>{in + static_cast<std::size_t>(of) * width, out + row * width});
  }
};

/// table row index[r] += in row r: the backward of an embedding. A kernel index is a block of `columns_of_block`
/// columns of the table, whose rows are added in ascending order, so that repeated indices add in a fixed order. A row
/// whose index is not below `limit` is not added.
template <stored_real T, std::integral Index, real Table = compute_type_t<T>>
struct accumulate_rows {
  const T* in;
  const Index* index;
  std::size_t rows;
  Table* table;
  std::size_t width;
  std::size_t limit = ~std::size_t{0};
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t block) const noexcept {
    const std::size_t first = block * columns_of_block;
    const std::size_t count = width - first < columns_of_block ? width - first : columns_of_block;
    for (std::size_t row = 0; row < rows; ++row) {
      if (static_cast<std::size_t>(index[row]) >= limit) continue;
      Table* const to = table + static_cast<std::size_t>(index[row]) * width + first;
      for_each_index(team, count, axpy<Table, T>{Table(1), in + row * width + first, to});
    }
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
