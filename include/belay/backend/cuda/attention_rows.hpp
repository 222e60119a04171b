// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the tiles of an attention have in common: who has which rows, and products of tiles of 32 rows.
// IWYU pragma: private, include "belay/backend/cuda/attention_tiles.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "belay/core/attention_call.hpp"
#include "belay/core/config.hpp"
#include "belay/core/operand.hpp"
#include "belay/kernel/block.hpp"
#include "belay/kernel/math.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Queries, or keys, of a tile. Four lanes have a row of it: of 32 scores each has 8, one beside the other, and of the
/// columns of a sum every fourth.
inline constexpr std::size_t attention_side = 32;
inline constexpr unsigned attention_lanes = 128;
inline constexpr std::size_t lanes_a_row = attention_lanes / attention_side;
inline constexpr std::size_t scores_a_lane = attention_side / lanes_a_row;

[[nodiscard]] BELAY_HD constexpr std::size_t row_of(unsigned lane) noexcept { return lane / lanes_a_row; }
[[nodiscard]] BELAY_HD constexpr std::size_t first_score_of(unsigned lane) noexcept {
  return lane % lanes_a_row * scores_a_lane;
}

/// Rows of memory, of one head where they are a part.
template <class T>
struct head_rows {
  T* data;
  std::size_t stride;

  BELAY_HD head_rows(T* first, std::size_t row_stride) noexcept : data(first), stride(row_stride) {}
  BELAY_HD head_rows(const operand<T>& of) noexcept : data(of.data), stride(of.stride) {}
  template <class U>
  requires std::same_as<const U, T> BELAY_HD head_rows(const operand<U>& of)
  noexcept : data(of.data), stride(of.stride) {}
  [[nodiscard]] BELAY_HD T* row(std::size_t index) const noexcept { return data + index * stride; }
  [[nodiscard]] BELAY_HD head_rows part(std::size_t first_row, std::size_t first_column) const noexcept {
    return {row(first_row) + first_column, stride};
  }
};

/// A block's part of an attention: up to 32 positions of one head of one sequence.
struct attention_part {
  std::size_t head;
  std::size_t number;  // of the head, counted through all sequences
  std::size_t begin;   // the row of the sequence's first position
  std::size_t first;   // position
  std::size_t count;
  std::size_t row;  // of `first`

  /// Whether query i of the part sees the key at position `key` + j, of `some` keys from `key` on.
  [[nodiscard]] BELAY_HD bool sees(std::size_t i, std::size_t key, std::size_t j, std::size_t some) const noexcept {
    return i < count && j < some && key + j <= first + i;
  }
};

/// The sizes of an attention, and which block has what.
struct attention_grid {
  std::size_t heads;
  std::size_t kv_heads;
  std::size_t size;
  std::size_t length;
  std::size_t sequences;
  double scale;

  attention_grid(const attention_sizes& of, std::size_t rows) noexcept
      : heads(of.heads),
        kv_heads(of.kv_heads),
        size(of.head_size),
        length(of.length),
        sequences(of.length == 0 ? 0 : rows / of.length),
        scale(of.scale()) {}

  [[nodiscard]] BELAY_HD std::size_t tiles() const noexcept { return (length + attention_side - 1) / attention_side; }
  /// Of a kernel that divides this many heads.
  [[nodiscard]] BELAY_HD std::size_t blocks_of(std::size_t of_heads) const noexcept {
    return sequences * of_heads * tiles();
  }
  [[nodiscard]] BELAY_HD attention_part part_of(std::size_t index, std::size_t of_heads) const noexcept {
    const std::size_t number = index / tiles(), first = index % tiles() * attention_side;
    const std::size_t begin = number / of_heads * length;
    return {number % of_heads, number, begin, first, some_from(first), begin + first};
  }
  /// Positions of a tile that begins at `first`.
  [[nodiscard]] BELAY_HD std::size_t some_from(std::size_t first) const noexcept {
    return length - first < attention_side ? length - first : attention_side;
  }
  /// The queries from `first` on of a head, in the sequence of a part of its keys.
  [[nodiscard]] BELAY_HD attention_part queries_of(const attention_part& of_keys, std::size_t head,
                                                   std::size_t first) const noexcept {
    const std::size_t sequence = of_keys.begin / length;
    return {head, sequence * heads + head, of_keys.begin, first, some_from(first), of_keys.begin + first};
  }
  [[nodiscard]] BELAY_HD std::size_t heads_each() const noexcept { return heads / kv_heads; }
  [[nodiscard]] BELAY_HD std::size_t kv_head(std::size_t head) const noexcept { return head / heads_each(); }
};

/// Ranges of columns of two tiles of rows.
template <class Number>
struct inner_product_tiles {
  Number left[attention_side][attention_side + 1];
  Number right[attention_side][attention_side + 1];
};

/// scores_of(registers)[j] = the inner product of the lane's row of `left` and row j of its scores of `right`, over
/// `size` columns; 0 where one of them is none.
template <kernel::block Block, class Left, class Right, class Scores>
BELAY_HD void add_inner_products(Block& block, head_rows<Left> left, std::size_t left_rows, head_rows<Right> right,
                                 std::size_t right_rows, std::size_t size, const Scores& scores_of) {
  for (std::size_t column = 0; column < size; column += attention_side) {
    block.phase([&](unsigned lane, auto& own) {
      auto& to = block.shared().factors;
      const std::remove_cvref_t<decltype(to.left[0][0])> zero = 0;
      for (std::size_t at = lane; at < attention_side * attention_side; at += attention_lanes) {
        const std::size_t row = at / attention_side, i = at % attention_side;
        const bool within = column + i < size;
        to.left[row][i] = within && row < left_rows ? kernel::widened(left.row(row)[column + i]) : zero;
        to.right[row][i] = within && row < right_rows ? kernel::widened(right.row(row)[column + i]) : zero;
      }
      if (column == 0)
        for (auto& score : scores_of(own)) score = 0;
    });
    block.phase([&](unsigned lane, auto& own) {
      const auto& from = block.shared().factors;
      auto& scores = scores_of(own);
      for (std::size_t i = 0; i < attention_side; ++i) {
        const auto x = from.left[row_of(lane)][i];
        for (std::size_t j = 0; j < scores_a_lane; ++j) scores[j] += x * from.right[first_score_of(lane) + j][i];
      }
    });
  }
}

/// Columns from `column` on of 32 rows, of which there are `some`; zeros where there is nothing.
template <std::size_t Columns, class Number, class T>
BELAY_HD void load_rows(unsigned lane, Number (&to)[attention_side][Columns], head_rows<T> from, std::size_t some,
                        std::size_t column, std::size_t size) noexcept {
  for (std::size_t at = lane; at < attention_side * Columns; at += attention_lanes) {
    const std::size_t row = at / Columns, i = at % Columns;
    to[row][i] = row < some && column + i < size ? kernel::widened(from.row(row)[column + i]) : Number(0);
  }
}
/// The lane's columns of its sums += weight * those of `row`.
template <std::size_t Columns, class Number>
BELAY_HD void add_row(unsigned lane, Number (&sums)[Columns / lanes_a_row], Number weight,
                      const Number (&row)[Columns]) noexcept {
  for (std::size_t i = 0; i < Columns / lanes_a_row; ++i) sums[i] += weight * row[i * lanes_a_row + lane % lanes_a_row];
}
/// The lane's columns of its row of `to`, from `column` on.
template <std::size_t Columns, class Number, class T>
BELAY_HD void store_row(unsigned lane, const Number (&sums)[Columns / lanes_a_row], head_rows<T> to, std::size_t column,
                        std::size_t size) noexcept {
  for (std::size_t i = 0; i < Columns / lanes_a_row; ++i) {
    const std::size_t at = column + i * lanes_a_row + lane % lanes_a_row;
    if (at < size) to.row(row_of(lane))[at] = static_cast<T>(sums[i]);
  }
}

}  // namespace belay::inline BELAY_ABI::cuda
