// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Sums over rows, one for each column. Rows are added in groups of `rows_of_group`, each from its first row to its
// last, and the groups in ascending order. So a device adds groups at once and then their sums, and one thread, which
// adds a group after the other, gets the same bits.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <concepts>
#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// Kernels that add up rows are divided into blocks of so many columns.
inline constexpr std::size_t columns_of_block = 64;
/// Rows whose sums are added to each other.
inline constexpr std::size_t rows_of_group = 64;

[[nodiscard]] BELAY_HD constexpr std::size_t column_block_count(std::size_t width) noexcept {
  return (width + columns_of_block - 1) / columns_of_block;
}
[[nodiscard]] BELAY_HD constexpr std::size_t row_group_count(std::size_t rows) noexcept {
  return (rows + rows_of_group - 1) / rows_of_group;
}

/// The part of a row in a column's sum.
template <class Term>
concept column_term = requires(const Term& term, std::size_t row, std::size_t column) {
  { term(row, column) } -> real;
};

/// sums[j] += the sum over rows of term(row, j). An index is a block of columns.
template <column_term Term, real Sum>
struct column_sums {
  using sum_type = Sum;
  /// The terms, the sums, and how many rows and columns there are.
  Term term;
  Sum* sums;
  std::size_t rows;
  std::size_t width;

  /// Indices of all columns.
  [[nodiscard]] BELAY_HD constexpr std::size_t blocks() const noexcept { return column_block_count(width); }
  /// The columns of a block, in all rows.
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t block) const noexcept {
    const std::size_t column = block * columns_of_block;
    const std::size_t count = width - column < columns_of_block ? width - column : columns_of_block;
    for (std::size_t group = 0; group < row_group_count(rows); ++group)
      add_group(team, group, column, count, [&](std::size_t j, Sum sum) { sums[column + j] += sum; });
  }

  /// Calls `take(j, the sum over the rows of a group in column `first` + j)` for j below `count`, at most those of a
  /// block, divided among the lanes.
  template <team Team, class Take>
  BELAY_HD void add_group(const Team& team, std::size_t group, std::size_t first, std::size_t count,
                          const Take& take) const noexcept {
    const std::size_t begin = group * rows_of_group, end = begin + rows_of_group < rows ? begin + rows_of_group : rows;
    if constexpr (Team::lanes == 1) {
      Sum part[columns_of_block] = {};
      for (std::size_t row = begin; row < end; ++row)
        for (std::size_t j = 0; j < count; ++j) part[j] += static_cast<Sum>(term(row, first + j));
      for (std::size_t j = 0; j < count; ++j) take(j, part[j]);
    } else {
      for (std::size_t j = team.lane; j < count; j += Team::lanes) {
        Sum part = 0;
        for (std::size_t row = begin; row < end; ++row) part += static_cast<Sum>(term(row, first + j));
        take(j, part);
      }
    }
  }
};

/// The sums of each group of rows, in `count` columns from `first` on: partials[group * count + j]. An index is a group
/// and a block of columns.
template <column_term Term, real Sum>
struct group_sums {
  /// The sums that groups are parts of, where those of groups are written, and the columns.
  column_sums<Term, Sum> of;
  Sum* partials;
  std::size_t first, count;

  /// Indices of all groups and blocks.
  [[nodiscard]] BELAY_HD std::size_t indices() const noexcept {
    return row_group_count(of.rows) * column_block_count(count);
  }
  /// A group in the columns of a block.
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t index) const noexcept {
    const std::size_t blocks = column_block_count(count), group = index / blocks;
    const std::size_t column = index % blocks * columns_of_block;
    const std::size_t some = count - column < columns_of_block ? count - column : columns_of_block;
    Sum* const to = partials + group * count + column;
    of.add_group(team, group, first + column, some, [&](std::size_t j, Sum sum) { to[j] = sum; });
  }
};

/// sums[j] += partials[j] + partials[count + j] + ..., group after group. An index is a column.
template <real Sum>
struct added_groups {
  /// Where it is added, the sums of groups, and how many columns and groups there are.
  Sum* sums;
  const Sum* partials;
  std::size_t count, groups;

  /// Column j.
  BELAY_HD void operator()(std::size_t j) const noexcept {
    Sum sum = sums[j];
    for (std::size_t group = 0; group < groups; ++group) sum += partials[group * count + j];
    sums[j] = sum;
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
