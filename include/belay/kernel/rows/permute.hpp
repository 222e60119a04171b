// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rows sorted by expert and back: the choices are counted, counts become offsets, each choice gets its slot, rows are
// moved to their slots and combined again. Slots of one expert are in the order of the choices, so the result depends
// on the choices alone.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "belay/core/config.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// Kernels that add up rows are divided into blocks of so many columns.
inline constexpr std::size_t columns_of_block = 64;

[[nodiscard]] BELAY_HD constexpr std::size_t column_block_count(std::size_t width) noexcept {
  return (width + columns_of_block - 1) / columns_of_block;
}

/// counts[b] = the number of entries of `choices` that are b. Every choice is below `counts.size()`.
template <std::integral Choice, std::integral Count>
constexpr void count_choices(std::span<const Choice> choices, std::span<Count> counts) noexcept {
  for (Count& count : counts) count = 0;
  for (Choice choice : choices) ++counts[static_cast<std::size_t>(choice)];
}

/// offsets[b] = counts[0] + ... + counts[b - 1]; returns the total. The spans may be the same.
template <std::integral Count>
constexpr Count exclusive_scan(std::span<const Count> counts, std::span<Count> offsets) noexcept {
  Count total = 0;
  for (std::size_t b = 0; b < counts.size(); ++b) {
    const Count count = counts[b];
    offsets[b] = total;
    total = static_cast<Count>(total + count);
  }
  return total;
}

/// slots[c] = the position of choice c when choices are sorted stably. On entry `next` holds the offsets of
/// `exclusive_scan`; on return next[b] is the end of b's slots.
template <std::integral Choice, std::integral Count>
constexpr void assign_slots(std::span<const Choice> choices, std::span<Count> next,
                            std::span<Count> positions) noexcept {
  for (std::size_t c = 0; c < choices.size(); ++c) positions[c] = next[static_cast<std::size_t>(choices[c])]++;
}

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
      for_each_index(team, width, fill<Out>{out + row * width, Out{}});
      return;
    }
    for_each_index(team, width, copy<T, Out>{in + static_cast<std::size_t>(of) * width, out + row * width});
  }
};

/// out row index[r] = in row r / repeat; no index occurs twice. With `repeat` = k and a token's k slots as indices,
/// each token's row is copied to all its slots.
template <class T, std::integral Index>
struct scatter_rows {
  const T* in;
  const Index* index;
  T* out;
  std::size_t width;
  std::size_t repeat = 1;
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    for_each_index(team, width,
                   copy<T>{in + (row / repeat) * width, out + static_cast<std::size_t>(index[row]) * width});
  }
};

/// out row r = the sum over j < k of weights[r k + j] * in row index[r k + j], added in the order of j.
/// Without weights (a null pointer) all are 1: the backward of scattering a row to k slots.
template <real T, std::integral Index>
struct weighted_row_sum {
  const T* in;
  const Index* index;
  const T* weights;
  T* out;
  std::size_t width;
  std::size_t k;
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    T* to = out + row * width;
    for_each_index(team, width, fill<T>{to, T(0)});
    for (std::size_t choice = row * k; choice < (row + 1) * k; ++choice) {
      const T weight = weights == nullptr ? T(1) : weights[choice];
      for_each_index(team, width, axpy<T>{weight, in + static_cast<std::size_t>(index[choice]) * width, to});
    }
  }
};

/// The backward of `weighted_row_sum`. A kernel index is a choice c, of rows x k: din row index[c] = weights[c] * dout
/// row c / k, and dweights[c] = the inner product of dout row c / k and in row index[c]. No index occurs twice; `din`
/// may be `in`.
template <real T, std::integral Index>
struct weighted_row_sum_backward {
  const T* in;
  const Index* index;
  const T* weights;
  const T* dout;
  T* din;
  T* dweights;
  std::size_t width;
  std::size_t k;
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t choice) const noexcept {
    const std::size_t slot = static_cast<std::size_t>(index[choice]) * width;
    const T* d = dout + (choice / k) * width;
    const T inner = row_dot(team, in + slot, d, width);
    if (team.lane == 0) dweights[choice] = inner;
    for_each_index(team, width, multiple<T>{weights[choice], d, din + slot});
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

/// A kernel of elements, `f(row * width + i)`, for the rows that are in use: those below `*used`, which is read when it
/// runs.
template <indexed F, std::integral Index>
struct rows_in_use {
  F f;
  const Index* used;
  std::size_t width;

  struct element {
    F f;
    std::size_t first;
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept { f(first + i); }
  };

  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    if (row < static_cast<std::size_t>(*used)) for_each_index(team, width, element{f, row * width});
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
