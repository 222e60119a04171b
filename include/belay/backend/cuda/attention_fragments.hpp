// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Causal attention of bf16 by tensor cores, as kernels of blocks (Dao, "FlashAttention-2", 2023). A warp has 16 rows
// and goes over tiles of others, each copied to the block's memory while the one before is computed with. Scores and
// probabilities stay in registers: the sums of one product lie where the next one has its left operand, for which they
// are rounded. All sums have a fixed order. Heads have up to 128 columns, a multiple of 8.
//
//   belay::cuda::queue_attention<belay::cuda::tensor_warp>(by, call);  // by.blocks(kernel), by.teams(count, kernel)
// IWYU pragma: private, include "belay/backend/cuda/runtime_api.cuh"
#pragma once

#include <cstddef>
#include <type_traits>

#include "belay/backend/cuda/attention_tiles.hpp"
#include "belay/backend/cuda/tensor_warp.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/operand.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Lanes of a block, rows that it has, and those of one of its warps.
inline constexpr unsigned fragment_lanes = 128, fragment_rows = 64, fragment_side = 16;

/// The first row of a block's that the lane's warp has; the lane has sums of the rows `row_in_warp` and 8 further, and
/// of every 8 columns those from `column_in_eight` on, two of them.
[[nodiscard]] BELAY_HD constexpr unsigned row_of_warp(unsigned lane) noexcept { return lane / 32 * fragment_side; }
[[nodiscard]] BELAY_HD constexpr unsigned row_in_warp(unsigned lane) noexcept { return lane % 32 / 4; }
[[nodiscard]] BELAY_HD constexpr unsigned column_in_eight(unsigned lane) noexcept { return lane % 4 * 2; }

/// Rows of a head in memory of a block, as pieces of 8 columns. Eight rows have the pieces of a column in different
/// banks: a row's number is in the place of its pieces.
template <unsigned Rows, unsigned Size>
struct fragment_tile {
  /// Its elements.
  alignas(16) bf16 data[Rows * Size];

  /// Where a piece is.
  [[nodiscard]] BELAY_HD static constexpr unsigned place(unsigned row, unsigned piece) noexcept {
    return row * Size + (piece ^ row % 8) * 8;
  }
  /// visit(row, piece) of the lane's pieces.
  template <class Visit>
  BELAY_HD static void each_piece(unsigned lane, const Visit& visit) {
    constexpr unsigned pieces = Size / 8;
    kernel::run_pack<Rows * pieces / fragment_lanes>([&](std::size_t i) {
      const unsigned at = lane + static_cast<unsigned>(i) * fragment_lanes;
      visit(at / pieces, at % pieces);
    });
  }
  /// Starts to copy `some` rows of `size` columns; what is beyond becomes zero.
  template <tensor_unit Unit>
  BELAY_HD void copy(unsigned lane, head_rows<const bf16> from, unsigned some, unsigned size) {
    each_piece(lane, [&](unsigned row, unsigned piece) {
      const bool within = row < some && piece * 8 < size;
      Unit::copy(data + place(row, piece), within ? from.row(row) + piece * 8 : from.data, within ? 8 : 0);
    });
  }
  /// Where the lane's row begins of 16 rows from `row` on, in columns from 16 * step on: an operand of a product, of
  /// the left side or, as the transpose, of the right one.
  [[nodiscard]] BELAY_HD const bf16* operand(unsigned lane, unsigned row, unsigned step) const noexcept {
    return data + (row + lane % 16) * Size + ((2 * step) ^ (lane / 16 % 2) ^ (lane % 8)) * 8;
  }
  /// sums += left * the 16 rows from `row` on.
  template <tensor_unit Unit>
  BELAY_HD void add_product(unsigned lane, float (&sums)[Size / 8][4], const bf16_pair (&left)[4], unsigned row) const {
    kernel::run_pack<Size / 16>([&](std::size_t step) {
      bf16_pair right[4];
      Unit::load_transposed(right, operand(lane, row, static_cast<unsigned>(step)));
      Unit::multiply(sums[2 * step], left, right[0], right[1]);
      Unit::multiply(sums[2 * step + 1], left, right[2], right[3]);
    });
  }
};

/// The left operand that 16 x 16 sums are, rounded.
template <tensor_unit Unit>
BELAY_HD void round_sums(bf16_pair (&to)[4], const float (&left)[4], const float (&right)[4]) {
  to[0] = Unit::rounded(left[0], left[1]);
  to[1] = Unit::rounded(left[2], left[3]);
  to[2] = Unit::rounded(right[0], right[1]);
  to[3] = Unit::rounded(right[2], right[3]);
}
/// The sum over the four lanes that have a row.
template <tensor_unit Unit>
[[nodiscard]] BELAY_HD float sum_of_row(unsigned lane, float x) {
  x += Unit::from(lane % 32 ^ 1, x);
  return x + Unit::from(lane % 32 ^ 2, x);
}
template <tensor_unit Unit>
[[nodiscard]] BELAY_HD float largest_of_row(unsigned lane, float x) {
  float other = Unit::from(lane % 32 ^ 1, x);
  x = other > x ? other : x;
  other = Unit::from(lane % 32 ^ 2, x);
  return other > x ? other : x;
}
/// store(row of the block, column, x, y) of the lane's sums, in pairs, for `some` rows and `size` columns.
template <unsigned Size, class Store>
BELAY_HD void each_pair(unsigned lane, const float (&sums)[Size / 8][4], unsigned some, unsigned size,
                        const Store& store) {
  kernel::run_pack<Size / 4>([&](std::size_t i) {
    const unsigned row = row_of_warp(lane) + row_in_warp(lane) + static_cast<unsigned>(i % 2) * 8;
    const unsigned column = static_cast<unsigned>(i / 2) * 8 + column_in_eight(lane);
    if (row < some && column < size) store(row, column, sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
  });
}

/// A block's part of an attention: 64 positions of one head of one sequence, or those that are left.
struct fragment_part {
  unsigned head;
  unsigned first;        // position
  unsigned some;         // positions
  std::size_t begin;     // the row of the sequence's first position
  std::size_t sums_row;  // of the head in `log_sums`: where its first position is

  [[nodiscard]] BELAY_HD std::size_t row() const noexcept { return begin + first; }
};

/// The sizes of an attention, and which block has what. Blocks that have the most to do come first.
struct fragment_grid {
  unsigned heads;
  unsigned kv_heads;
  unsigned size;
  unsigned length;
  unsigned sequences;
  float scale;

  fragment_grid(const attention_sizes& of, std::size_t rows) noexcept
      : heads(static_cast<unsigned>(of.heads)),
        kv_heads(static_cast<unsigned>(of.kv_heads)),
        size(static_cast<unsigned>(of.head_size)),
        length(static_cast<unsigned>(of.length)),
        sequences(of.length == 0 ? 0 : static_cast<unsigned>(rows / of.length)),
        scale(static_cast<float>(of.scale())) {}

  [[nodiscard]] BELAY_HD unsigned tiles() const noexcept { return (length + fragment_rows - 1) / fragment_rows; }
  /// Blocks of a kernel that divides this many heads.
  [[nodiscard]] BELAY_HD std::size_t blocks_of(unsigned of_heads) const noexcept {
    return std::size_t{sequences} * of_heads * tiles();
  }
  /// The part of a block that has queries, or keys.
  [[nodiscard]] BELAY_HD fragment_part queries_of(std::size_t index) const noexcept {
    const unsigned all = sequences * heads, number = static_cast<unsigned>(index % all);
    return part(number, heads, tiles() - 1 - static_cast<unsigned>(index / all));
  }
  [[nodiscard]] BELAY_HD fragment_part keys_of(std::size_t index) const noexcept {
    const unsigned all = sequences * kv_heads, number = static_cast<unsigned>(index % all);
    return part(number, kv_heads, static_cast<unsigned>(index / all));
  }
  [[nodiscard]] BELAY_HD unsigned heads_each() const noexcept { return heads / kv_heads; }
  /// The first column of a head in rows of queries, and of the keys and values that it sees.
  [[nodiscard]] BELAY_HD std::size_t column(unsigned head) const noexcept { return std::size_t{head} * size; }
  [[nodiscard]] BELAY_HD std::size_t kv_column(unsigned head) const noexcept { return column(head / heads_each()); }
  /// The factor of a score in the exponent of 2.
  [[nodiscard]] BELAY_HD float binary_scale() const noexcept { return scale * log2_of_e; }

  static constexpr float log2_of_e = 1.44269504F;

 private:
  [[nodiscard]] BELAY_HD fragment_part part(unsigned number, unsigned of_heads, unsigned tile) const noexcept {
    const unsigned first = tile * fragment_rows, left = length - first;
    const std::size_t begin = std::size_t{number / of_heads} * length;
    return {number % of_heads, first, left < fragment_rows ? left : fragment_rows, begin, std::size_t{number} * length};
  }
};

/// The forward. A block has 64 queries of one head, in registers, and goes over the keys and values that they see.
template <tensor_unit Unit, unsigned Size>
struct attention_fragments {
  static constexpr unsigned lanes = fragment_lanes;
  using unit = Unit;
  static constexpr unsigned others = 4096 / Size;  // keys of a tile
  struct shared_type {
    fragment_tile<fragment_rows, Size> queries;
    fragment_tile<others, Size> keys[2];
    fragment_tile<others, Size> values[2];
  };
  struct lane_type {
    bf16_pair query[Size / 16][4];
    float sum[Size / 8][4];
    float largest[2];  // of the scores of the lane's two rows
    float total[2];    // of their probabilities in the lane's columns
  };

  fragment_grid grid;
  head_rows<const bf16> queries;
  head_rows<const bf16> keys;
  head_rows<const bf16> values;
  head_rows<bf16> context;
  float* log_sums;

  explicit attention_fragments(const attention_call<bf16>& call) noexcept
      : grid(call.sizes, call.queries.rows),
        queries(call.queries),
        keys(call.keys),
        values(call.values),
        context(call.context),
        log_sums(call.log_sums) {}

  [[nodiscard]] std::size_t blocks() const noexcept { return grid.blocks_of(grid.heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const fragment_part own = grid.queries_of(index);
    const unsigned end = own.first + own.some;
    block.phase([&](unsigned lane, lane_type& mine) {
      const auto q = queries.part(own.row(), grid.column(own.head));
      block.shared().queries.template copy<Unit>(lane, q, own.some, grid.size);
      fetch(lane, block.shared(), own, 0);
      for (auto& sums : mine.sum)
        for (float& sum : sums) sum = 0;
      for (float& each : mine.largest) each = -infinite<float>;
      for (float& each : mine.total) each = 0;
      Unit::template wait_but<0>();
    });
    block.phase([&](unsigned lane, lane_type& mine) {
      kernel::run_pack<Size / 16>([&](std::size_t step) {
        Unit::load(mine.query[step],
                   block.shared().queries.operand(lane, row_of_warp(lane), static_cast<unsigned>(step)));
      });
    });
    for (unsigned key = 0; key < end; key += others) {
      block.phase([&](unsigned lane, lane_type& mine) {
        if (key + others < end) fetch(lane, block.shared(), own, key + others);
        if (key < own.first + row_of_warp(lane) + fragment_side) attend(block.shared(), lane, mine, own.first, key);
        Unit::template wait_but<0>();
      });
    }
    block.phase([&](unsigned lane, lane_type& mine) { finish(lane, mine, own); });
  }

 private:
  [[nodiscard]] BELAY_HD static constexpr unsigned turn(unsigned key) noexcept { return key / others % 2; }

  BELAY_HD void fetch(unsigned lane, shared_type& to, const fragment_part& own, unsigned key) const {
    const std::size_t row = own.begin + key, column = grid.kv_column(own.head);
    to.keys[turn(key)].template copy<Unit>(lane, keys.part(row, column), grid.length - key, grid.size);
    to.values[turn(key)].template copy<Unit>(lane, values.part(row, column), grid.length - key, grid.size);
    Unit::close_group();
  }

  // Adds the keys of a tile to the sums of the warp's queries.
  BELAY_HD void attend(const shared_type& from, unsigned lane, lane_type& mine, unsigned first, unsigned key) const {
    float score[others / 8][4];
    for (auto& sums : score)
      for (float& sum : sums) sum = 0;
    kernel::run_pack<Size / 16>([&](std::size_t step) {
      kernel::run_pack<others / 16>([&](std::size_t j) {
        bf16_pair right[4];
        Unit::load(right,
                   from.keys[turn(key)].operand(lane, static_cast<unsigned>(j) * 16, static_cast<unsigned>(step)));
        Unit::multiply(score[2 * j], mine.query[step], right[0], right[2]);
        Unit::multiply(score[2 * j + 1], mine.query[step], right[1], right[3]);
      });
    });
    const unsigned query = first + row_of_warp(lane) + row_in_warp(lane);
    if (key + others > first + row_of_warp(lane)) {
      kernel::run_pack<others / 2>([&](std::size_t i) {
        const unsigned at = key + static_cast<unsigned>(i / 4 * 8 + i % 2) + column_in_eight(lane);
        if (at > query + static_cast<unsigned>(i % 4 / 2 * 8)) score[i / 4][i % 4] = -infinite<float>;
      });
    }
    kernel::run_pack<2>([&](std::size_t half) { weigh(lane, mine, score, half); });
    kernel::run_pack<others / 16>([&](std::size_t j) {
      bf16_pair left[4];
      round_sums<Unit>(left, score[2 * j], score[2 * j + 1]);
      from.values[turn(key)].template add_product<Unit>(lane, mine.sum, left, static_cast<unsigned>(j) * 16);
    });
  }

  // Makes the scores of one of the lane's rows probabilities, beside the largest score so far.
  BELAY_HD void weigh(unsigned lane, lane_type& mine, float (&score)[others / 8][4], std::size_t half) const {
    float largest = mine.largest[half];
    kernel::run_pack<others / 4>([&](std::size_t i) {
      const float x = score[i / 2][2 * half + i % 2];
      largest = x > largest ? x : largest;
    });
    largest = largest_of_row<Unit>(lane, largest);
    const float factor = grid.binary_scale(), offset = largest * factor;
    const float kept = Unit::power_of_two(mine.largest[half] * factor - offset);
    float total = mine.total[half] * kept;
    kernel::run_pack<others / 4>([&](std::size_t i) {
      float& x = score[i / 2][2 * half + i % 2];
      x = Unit::power_of_two(x * factor - offset);
      total += x;
    });
    kernel::run_pack<Size / 4>([&](std::size_t i) { mine.sum[i / 2][2 * half + i % 2] *= kept; });
    mine.largest[half] = largest;
    mine.total[half] = total;
  }

  BELAY_HD void finish(unsigned lane, lane_type& mine, const fragment_part& own) const {
    kernel::run_pack<2>([&](std::size_t half) {
      const float total = sum_of_row<Unit>(lane, mine.total[half]), inverse = 1 / total;
      kernel::run_pack<Size / 4>([&](std::size_t i) { mine.sum[i / 2][2 * half + i % 2] *= inverse; });
      const unsigned row = row_of_warp(lane) + row_in_warp(lane) + static_cast<unsigned>(half) * 8;
      if (log_sums != nullptr && lane % 4 == 0 && row < own.some)
        log_sums[own.sums_row + own.first + row] = mine.largest[half] * grid.scale + kernel::logarithm(total);
    });
    const auto to = context.part(own.row(), grid.column(own.head));
    each_pair<Size>(lane, mine.sum, own.some, grid.size, [&](unsigned row, unsigned column, float x, float y) {
      const bf16_pair both = Unit::rounded(x, y);
      const auto bits = [](bf16_pair word) { return bf16::from_bits(static_cast<bf16::bits_type>(word)); };
      kernel::store_pack(kernel::pack_of<bf16, 2>{{bits(both), bits(both >> 16)}}, to.row(row), column);
    });
  }
};

/// Whether an operand's rows can be moved by 16 bytes.
template <class T>
[[nodiscard]] bool has_packs(const operand<T>& of) noexcept {
  constexpr std::size_t count = 16 / sizeof(T);
  return kernel::are_packs<count>(of.data) && of.stride % count == 0;
}
/// Whether kernels of fragments take a call: its heads have up to 128 columns, a multiple of 8, and its rows are
/// aligned to 16 bytes.
[[nodiscard]] inline bool are_fragments(const attention_sizes& of) noexcept {
  return of.head_size > 0 && of.head_size <= 128 && of.head_size % 8 == 0 && of.length < 0x7fffffffU;
}
[[nodiscard]] inline bool are_fragments(const attention_call<bf16>& call) noexcept {
  return are_fragments(call.sizes) && has_packs(call.queries) && has_packs(call.keys) && has_packs(call.values) &&
         has_packs(call.context);
}

/// Queues the forward, by tensor cores where they take it; false where `by` could not.
template <tensor_unit Unit, class By, class T>
bool queue_attention(By& by, const attention_call<T>& call) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (are_fragments(call))
      return call.sizes.head_size <= 64 ? by.blocks(attention_fragments<Unit, 64>(call))
                                        : by.blocks(attention_fragments<Unit, 128>(call));
  }
  return queue_attention_tiles(by, call);
}
/// Queues the backward, one kernel after the other.
template <tensor_unit Unit, class By, class T>
bool queue_attention(By& by, const attention_gradient_call<T>& call) {
  return queue_attention_tiles(by, call);
}

}  // namespace belay::inline BELAY_ABI::cuda
