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
/// Counting, sorting and selecting as work of one thread, in the order of a stream: what a device does with
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
  /// The rows that are added, their indices, and how many there are; the table, and what its indices are below.
  const T* in;
  const Index* index;
  std::size_t rows;
  Table* table;
  std::size_t width;
  std::size_t limit = ~std::size_t{0};

  /// Indices of all columns.
  [[nodiscard]] BELAY_HD constexpr std::size_t blocks() const noexcept { return column_block_count(width); }
  /// The columns of a block, in all rows.
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
  /// Rows [first, first + count) alone.
  [[nodiscard]] BELAY_HD constexpr accumulate_rows part(std::size_t first, std::size_t count) const noexcept {
    return {in + first * width, index + first, count, table, width, limit};
  }
};

/// keys[i] = index[i], or `limit` where that is not below it, so that those stand together at the end of a sorting.
template <std::integral Index>
struct limited_keys {
  /// The indices, what they should be below, and the keys.
  const Index* index;
  std::size_t limit;
  std::int32_t* keys;
  /// One key.
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    const auto key = static_cast<std::size_t>(index[i]);
    keys[i] = static_cast<std::int32_t>(key < limit ? key : limit);
  }
};

/// order[places[i]] = i: which row stands at each place.
struct rows_by_place {
  /// Where each row stands, and the rows in that order.
  const std::int32_t* places;
  std::int32_t* order;
  /// One row.
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { order[places[i]] = static_cast<std::int32_t>(i); }
};

/// `accumulate_rows` of rows that have been sorted stably by their index, to the same bits: those of one index stand
/// together, in ascending order. A kernel index is a place in the sorting and a block of columns. A team whose place is
/// the first of its index adds all of them, and the others do nothing.
template <stored_real T, std::integral Index, real Table = compute_type_t<T>>
struct accumulate_sorted_rows {
  /// The rows, and which of them stands at each place.
  accumulate_rows<T, Index, Table> of;
  const std::int32_t* order;

  /// Columns that a lane adds at once, and those of a block: of a warp each lane has one pack.
  static constexpr std::size_t columns_of_pack = pack_size<T, Table>;
  static constexpr std::size_t columns_of_team = 32 * columns_of_pack;
  /// Rows that are asked for before the first of them is added.
  static constexpr std::size_t rows_ahead = 6;

  /// Indices of all places and blocks.
  [[nodiscard]] BELAY_HD constexpr std::size_t indices() const noexcept { return of.rows * blocks(); }
  /// Whether it is added by packs.
  [[nodiscard]] BELAY_HD bool packs() const noexcept {
    return of.width % columns_of_pack == 0 && are_packs<columns_of_pack>(of.in, of.table);
  }
  /// The rows of an index in the columns of a block, where its first row stands at this place.
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t index) const noexcept {
    const std::size_t place = index / blocks();
    const auto key = static_cast<std::size_t>(key_at(place));
    if (key >= of.limit || (place > 0 && key_at(place - 1) == key_at(place))) return;
    const std::size_t column = index % blocks() * columns_of_team, end = end_of_run(place);
    Table* const to = of.table + key * of.width;
    if (by_packs(team, packs()))
      add<columns_of_pack>(team, place, end, to, column);
    else
      add<1>(team, place, end, to, column);
  }

 private:
  [[nodiscard]] BELAY_HD constexpr std::size_t blocks() const noexcept {
    return (of.width + columns_of_team - 1) / columns_of_team;
  }
  [[nodiscard]] BELAY_HD std::size_t row_at(std::size_t place) const noexcept {
    return static_cast<std::size_t>(order[place]);
  }
  [[nodiscard]] BELAY_HD Index key_at(std::size_t place) const noexcept { return of.index[row_at(place)]; }

  // By steps that double, since most runs are short, then by halves.
  [[nodiscard]] BELAY_HD std::size_t end_of_run(std::size_t first) const noexcept {
    const Index key = key_at(first);
    std::size_t within = first, end = first + 1;
    while (end < of.rows && key_at(end) == key) {
      const std::size_t step = end - first, left = of.rows - end;
      within = end;
      end += step < left ? step : left;
    }
    while (end - within > 1) {
      const std::size_t middle = within + (end - within) / 2;
      if (key_at(middle) == key)
        within = middle;
      else
        end = middle;
    }
    return end;
  }

  // Lanes without a pack of their own follow the first, so that all meet between loads and additions: a compiler moves
  // each load to its addition otherwise, and a long run waits for every row.
  template <std::size_t Count, team Team>
  BELAY_HD void add(const Team& team, std::size_t begin, std::size_t end, Table* to, std::size_t first) const noexcept {
    const std::size_t last = of.width - first < columns_of_team ? of.width : first + columns_of_team;
    for (; first < last; first += Team::lanes * Count) {
      const bool mine = first + team.lane * Count < last;
      const std::size_t column = mine ? first + team.lane * Count : first;
      pack_of<Table, Count> sum = load_pack<Count>(to, column);
      for (std::size_t place = begin; place < end; place += rows_ahead) {
        pack_of<T, Count> x[rows_ahead] = {};
        run_pack<rows_ahead>([&](std::size_t i) {
          if (place + i < end) x[i] = load_pack<Count>(of.in + row_at(place + i) * of.width, column);
        });
        team.synchronize();
        run_pack<rows_ahead>([&](std::size_t i) {
          if (place + i < end) run_pack<Count>(axpy<Table, T>{Table(1), x[i].of, sum.of});
        });
      }
      if (mine) store_pack(sum, to, column);
    }
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
