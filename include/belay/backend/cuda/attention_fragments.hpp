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
#include "belay/backend/cuda/tensor_tiles.hpp"
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
  /// Pieces of a row; rows from one piece of a lane to its next, which lies in the same column.
  static constexpr unsigned pieces = Size / 8, row_step = fragment_lanes / pieces;

  /// visit(row, piece, i) of the lane's piece i.
  template <class Visit>
  BELAY_HD static void each_piece(unsigned lane, const Visit& visit) {
    kernel::run_pack<Rows / row_step>(
        [&](std::size_t i) { visit(lane / pieces + static_cast<unsigned>(i) * row_step, lane % pieces, i); });
  }
  /// Starts to copy `some` rows of `size` columns; what is beyond becomes zero.
  template <tensor_unit Unit, class T>
  BELAY_HD void copy(unsigned lane, head_rows<T> from, unsigned some, unsigned size) {
    const std::size_t step = row_step * from.stride;
    const T* const first = from.row(lane / pieces) + lane % pieces * 8;
    each_piece(lane, [&](unsigned row, unsigned piece, std::size_t i) {
      Unit::copy(data + place(row, piece), first + i * step, row < some && piece * 8 < size ? 8 : 0);
    });
  }
  /// Where the lane loads, of 16 rows from `row` on, a multiple of 16, in columns from 16 * step on: `left_row` for a
  /// left operand, or transposed for a right one; `right_row` for the transpose of a right operand.
  [[nodiscard]] BELAY_HD const bf16* left_row(unsigned lane, unsigned row, unsigned step) const noexcept {
    return data + row * Size + (place(lane % 16, lane / 16 % 2) ^ 16 * step);
  }
  [[nodiscard]] BELAY_HD const bf16* right_row(unsigned lane, unsigned row, unsigned step) const noexcept {
    return data + row * Size + (place(lane % 8 + lane / 16 % 2 * 8, lane / 8 % 2) ^ 16 * step);
  }
  /// sums += left, which are 16 x 16 sums and are rounded, * the 16 rows from `row` on.
  template <tensor_unit Unit>
  BELAY_HD void add_product(unsigned lane, float (&sums)[Size / 8][4], const float (&left)[2][4], unsigned row) const {
    const bf16_pair rounded[4] = {Unit::rounded(left[0][0], left[0][1]), Unit::rounded(left[0][2], left[0][3]),
                                  Unit::rounded(left[1][0], left[1][1]), Unit::rounded(left[1][2], left[1][3])};
    kernel::run_pack<Size / 16>([&](std::size_t step) {
      bf16_pair right[4];
      Unit::load_transposed(right, left_row(lane, row, static_cast<unsigned>(step)));
      Unit::multiply(sums[2 * step], rounded, right[0], right[1]);
      Unit::multiply(sums[2 * step + 1], rounded, right[2], right[3]);
    });
  }
};

/// The sum, and the largest number, of the four lanes that have a row.
template <tensor_unit Unit>
[[nodiscard]] BELAY_HD float sum_of_row(unsigned lane, float x) {
  x += Unit::from(lane % 32 ^ 1, x);
  return x + Unit::from(lane % 32 ^ 2, x);
}
template <tensor_unit Unit>
[[nodiscard]] BELAY_HD float largest_of_row(unsigned lane, float x) {
  x = Unit::larger(x, Unit::from(lane % 32 ^ 1, x));
  return Unit::larger(x, Unit::from(lane % 32 ^ 2, x));
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

/// Writes the lane's sums, times a factor.
template <unsigned Size>
BELAY_HD void store_sums(unsigned lane, const float (&sums)[Size / 8][4], head_rows<float> to, unsigned some,
                         unsigned size, float factor) {
  each_pair<Size>(lane, sums, some, size, [&](unsigned row, unsigned column, float x, float y) {
    kernel::store_pack(kernel::pack_of<float, 2>{{x * factor, y * factor}}, to.row(row), column);
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
  static constexpr tile_access access = tile_access::packed;
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
                   block.shared().queries.left_row(lane, row_of_warp(lane), static_cast<unsigned>(step)));
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
    float score[others / 16][2][4];  // of 16 keys each
    for (auto& pair : score)
      for (auto& sums : pair)
        for (float& sum : sums) sum = 0;
    kernel::run_pack<Size / 16>([&](std::size_t step) {
      kernel::run_pack<others / 16>([&](std::size_t j) {
        bf16_pair right[4];
        Unit::load(right,
                   from.keys[turn(key)].right_row(lane, static_cast<unsigned>(j) * 16, static_cast<unsigned>(step)));
        Unit::multiply(score[j][0], mine.query[step], right[0], right[1]);
        Unit::multiply(score[j][1], mine.query[step], right[2], right[3]);
      });
    });
    const unsigned query = first + row_of_warp(lane) + row_in_warp(lane);
    if (key + others > first + row_of_warp(lane)) {
      kernel::run_pack<others / 2>([&](std::size_t i) {
        const unsigned at = key + static_cast<unsigned>(i / 4 * 8 + i % 2) + column_in_eight(lane);
        if (at > query + static_cast<unsigned>(i % 4 / 2 * 8)) score[i / 8][i / 4 % 2][i % 4] = -infinite<float>;
      });
    }
    kernel::run_pack<2>([&](std::size_t half) { weigh(lane, mine, score, half); });
    kernel::run_pack<others / 16>([&](std::size_t j) {
      from.values[turn(key)].template add_product<Unit>(lane, mine.sum, score[j], static_cast<unsigned>(j) * 16);
    });
  }

  // Makes the scores of one of the lane's rows probabilities, beside the largest score so far.
  BELAY_HD void weigh(unsigned lane, lane_type& mine, float (&score)[others / 16][2][4], std::size_t half) const {
    float largest = mine.largest[half];
    kernel::run_pack<others / 4>(
        [&](std::size_t i) { largest = Unit::larger(largest, score[i / 4][i / 2 % 2][2 * half + i % 2]); });
    largest = largest_of_row<Unit>(lane, largest);
    const float factor = grid.binary_scale(), offset = largest * factor;
    const float kept = Unit::power_of_two(mine.largest[half] * factor - offset);
    float total = mine.total[half] * kept;
    kernel::run_pack<others / 4>([&](std::size_t i) {
      float& x = score[i / 4][i / 2 % 2][2 * half + i % 2];
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
      Unit::store(to.row(row) + column, Unit::rounded(x, y));
    });
  }
};

/// The sizes and rows that the kernels of the backward read; they write `dqueries` too, which until it is written holds
/// of each row and head the mean in its first column, and in the second half of its columns the context's gradient,
/// rounded: it is read in every tile, and so in half the bytes and by copies.
struct fragment_gradient_rows {
  fragment_grid grid;
  head_rows<const bf16> queries;
  head_rows<const bf16> keys;
  head_rows<const bf16> values;
  head_rows<const float> dcontext;
  const float* log_sums;
  head_rows<float> dqueries;

  explicit fragment_gradient_rows(const attention_gradient_call<bf16>& call) noexcept
      : grid(call.sizes, call.queries.rows),
        queries(call.queries),
        keys(call.keys),
        values(call.values),
        dcontext(call.dcontext),
        log_sums(call.log_sums),
        dqueries(call.dqueries) {}

  /// The rounded gradient of a head's context, from a row on.
  [[nodiscard]] BELAY_HD head_rows<bf16> rounded(std::size_t row, unsigned head) const noexcept {
    const head_rows<bf16> all{reinterpret_cast<bf16*>(dqueries.data), 2 * dqueries.stride};
    return all.part(row, 2 * grid.column(head) + grid.size);
  }
  [[nodiscard]] BELAY_HD float& mean(std::size_t row, unsigned head) const noexcept {
    return dqueries.row(row)[grid.column(head)];
  }
  /// The exponent of 2 that the sum of a query's row is.
  [[nodiscard]] BELAY_HD float exponent(std::size_t place) const noexcept {
    return log_sums[place] * fragment_grid::log2_of_e;
  }
};

/// Tiles of a kernel of the backward: 64 rows of two operands, which a block has, and twice those of the others, which
/// it goes over, 16 by 16. The scores are the inner products of the first operands, the gradients of probabilities
/// those of the second.
template <unsigned Size>
struct gradient_tiles {
  static constexpr unsigned others = 2048 / Size;
  fragment_tile<fragment_rows, Size> own[2];
  fragment_tile<others, Size> other[2][2];
};

/// A lane's sums of 16 rows by 16 others, of both operands.
struct fragment_scores {
  float of[2][2][4];

  /// Sum i: the score, which is made the probability, and the gradient of that.
  [[nodiscard]] BELAY_HD float& probability(std::size_t i) noexcept { return of[0][i / 4][i % 4]; }
  [[nodiscard]] BELAY_HD float& gradient(std::size_t i) noexcept { return of[1][i / 4][i % 4]; }
  /// The row of sum i in the warp's, and its column of 16.
  [[nodiscard]] BELAY_HD static constexpr unsigned row(unsigned lane, std::size_t i) noexcept {
    return row_in_warp(lane) + static_cast<unsigned>(i % 4 / 2) * 8;
  }
  [[nodiscard]] BELAY_HD static constexpr unsigned column(unsigned lane, std::size_t i) noexcept {
    return static_cast<unsigned>(i / 4) * 8 + column_in_eight(lane) + static_cast<unsigned>(i % 2);
  }
};

/// A warp's rows of the first `Held` operands in registers, since they are those of every product.
template <unsigned Held, unsigned Size>
struct held_operands {
  bf16_pair of[Held == 0 ? 1 : Held][Size / 16][4];

  template <tensor_unit Unit>
  BELAY_HD void load(const gradient_tiles<Size>& tiles, unsigned lane) {
    if constexpr (Held > 0) {
      kernel::run_pack<Held * Size / 16>([&](std::size_t i) {
        const auto which = static_cast<unsigned>(i) / (Size / 16), step = static_cast<unsigned>(i) % (Size / 16);
        Unit::load(of[which][step], tiles.own[which].left_row(lane, row_of_warp(lane), step));
      });
    }
  }
  /// The scores of the warp's rows and the 16 others from `at` on, in the tiles of a turn.
  template <tensor_unit Unit>
  BELAY_HD void score(fragment_scores& scores, const gradient_tiles<Size>& tiles, unsigned turn, unsigned lane,
                      unsigned at) const {
    kernel::run_pack<16>([&](std::size_t i) { scores.of[i / 8][i / 4 % 2][i % 4] = 0; });
    kernel::run_pack<Size / 16>([&](std::size_t step) {
      add<Unit, 0>(scores.of[0], tiles, turn, lane, at, static_cast<unsigned>(step));
      add<Unit, 1>(scores.of[1], tiles, turn, lane, at, static_cast<unsigned>(step));
    });
  }

 private:
  template <tensor_unit Unit, unsigned Which>
  BELAY_HD void add(float (&sums)[2][4], const gradient_tiles<Size>& tiles, unsigned turn, unsigned lane, unsigned at,
                    unsigned step) const {
    bf16_pair right[4];
    Unit::load(right, tiles.other[turn][Which].right_row(lane, at, step));
    const auto add_to = [&](const bf16_pair(&left)[4]) {
      Unit::multiply(sums[0], left, right[0], right[1]);
      Unit::multiply(sums[1], left, right[2], right[3]);
    };
    if constexpr (Which < Held) {
      add_to(of[Which][step]);
    } else {
      bf16_pair left[4];
      Unit::load(left, tiles.own[Which].left_row(lane, row_of_warp(lane), step));
      add_to(left);
    }
  }
};

/// The part of kernels whose blocks have 64 queries of a head: they go over the keys and values that these see.
template <tensor_unit Unit, unsigned Size>
struct query_gradient_pass {
  using tiles_type = gradient_tiles<Size>;

  fragment_gradient_rows rows;

  /// Starts to copy the queries, and the keys and values from `key` on.
  BELAY_HD void fetch_queries(unsigned lane, tiles_type& to, const fragment_part& own) const {
    const auto from = rows.queries.part(own.row(), rows.grid.column(own.head));
    to.own[0].template copy<Unit>(lane, from, own.some, rows.grid.size);
  }
  BELAY_HD void fetch(unsigned lane, tiles_type& to, const fragment_part& own, unsigned key) const {
    const fragment_grid& grid = rows.grid;
    const std::size_t row = own.begin + key, column = grid.kv_column(own.head);
    auto& tiles = to.other[key / tiles_type::others % 2];
    tiles[0].template copy<Unit>(lane, rows.keys.part(row, column), grid.length - key, grid.size);
    tiles[1].template copy<Unit>(lane, rows.values.part(row, column), grid.length - key, grid.size);
    Unit::close_group();
  }
  /// use(lane, its registers, scores, tile of keys, where in it) of all 16 keys by 16 queries of a warp, with scores
  /// that have been made probabilities. The first tiles have arrived.
  template <class Block, class Use>
  BELAY_HD void each_score(Block& block, const fragment_part& own, const Use& use) const {
    const unsigned end = own.first + own.some;
    block.phase([&](unsigned lane, auto& mine) {
      mine.held.template load<Unit>(block.shared(), lane);
      kernel::run_pack<2>([&](std::size_t half) {
        const unsigned row = row_of_warp(lane) + fragment_scores::row(lane, 2 * half);
        mine.exponent[half] = row < own.some ? rows.exponent(own.sums_row + own.first + row) : 0;
      });
    });
    for (unsigned key = 0; key < end; key += tiles_type::others) {
      block.phase([&](unsigned lane, auto& mine) {
        if (key + tiles_type::others < end) fetch(lane, block.shared(), own, key + tiles_type::others);
        const unsigned first = own.first + row_of_warp(lane), turn = key / tiles_type::others % 2;
        kernel::run_pack<tiles_type::others / 16>([&](std::size_t j) {
          const unsigned at = static_cast<unsigned>(j) * 16;
          if (key + at > first) return;
          fragment_scores scores;
          mine.held.template score<Unit>(scores, block.shared(), turn, lane, at);
          kernel::run_pack<8>([&](std::size_t i) {
            float& x = scores.probability(i);
            x = Unit::power_of_two(x * rows.grid.binary_scale() - mine.exponent[i % 4 / 2]);
            if (key + at == first && scores.column(lane, i) > scores.row(lane, i)) x = 0;
          });
          use(lane, mine, scores, block.shared().other[turn][0], at);
        });
        Unit::template wait_but<0>();
      });
    }
  }
};

/// The mean of the gradients of a row's probabilities, each weighted by itself, from the probabilities, and the rounded
/// gradient of the context.
template <tensor_unit Unit, unsigned Size>
struct attention_mean_fragments {
  using unit = Unit;
  static constexpr unsigned lanes = fragment_lanes;
  static constexpr tile_access access = tile_access::packed;
  using shared_type = gradient_tiles<Size>;
  struct lane_type {
    held_operands<2, Size> held;
    float exponent[2];
    float mean[2];
  };

  query_gradient_pass<Unit, Size> pass;

  [[nodiscard]] std::size_t blocks() const noexcept { return pass.rows.grid.blocks_of(pass.rows.grid.heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const fragment_gradient_rows& rows = pass.rows;
    const fragment_part own = rows.grid.queries_of(index);
    block.phase([&](unsigned lane, lane_type& mine) {
      pass.fetch_queries(lane, block.shared(), own);
      pass.fetch(lane, block.shared(), own, 0);
      round_context(lane, block.shared().own[1], own);
      for (float& mean : mine.mean) mean = 0;
      Unit::template wait_but<0>();
    });
    pass.each_score(block, own, [](unsigned, lane_type& mine, fragment_scores& p, const auto&, unsigned) {
      kernel::run_pack<8>([&](std::size_t i) { mine.mean[i % 4 / 2] += p.probability(i) * p.gradient(i); });
    });
    block.phase([&](unsigned lane, lane_type& mine) {
      kernel::run_pack<2>([&](std::size_t half) {
        const float mean = sum_of_row<Unit>(lane, mine.mean[half]);
        const unsigned row = row_of_warp(lane) + fragment_scores::row(lane, 2 * half);
        if (lane % 4 == 0 && row < own.some) rows.mean(own.row() + row, own.head) = mean;
      });
    });
  }

 private:
  BELAY_HD void round_context(unsigned lane, fragment_tile<fragment_rows, Size>& to, const fragment_part& own) const {
    const fragment_grid& grid = pass.rows.grid;
    const auto from = pass.rows.dcontext.part(own.row(), grid.column(own.head));
    const auto kept = pass.rows.rounded(own.row(), own.head);
    to.each_piece(lane, [&](unsigned row, unsigned piece, std::size_t) {
      bf16_pair pairs[4] = {0, 0, 0, 0};
      if (row < own.some && piece * 8 < grid.size) {
        const auto x = kernel::load_pack<8>(from.row(row), piece * 8);
        kernel::run_pack<4>([&](std::size_t i) { pairs[i] = Unit::rounded(x.of[2 * i], x.of[2 * i + 1]); });
        Unit::store(kept.row(row) + piece * 8, pairs);
      }
      Unit::put(to.data + to.place(row, piece), pairs);
    });
  }
};

/// The gradients of queries, in place of the means.
template <tensor_unit Unit, unsigned Size>
struct attention_query_gradient_fragments {
  using unit = Unit;
  static constexpr unsigned lanes = fragment_lanes;
  static constexpr tile_access access = tile_access::packed;
  using shared_type = gradient_tiles<Size>;
  struct lane_type {
    held_operands<Size <= 64 ? 2 : 1, Size> held;
    float exponent[2];
    float mean[2];
    float sum[Size / 8][4];
  };

  query_gradient_pass<Unit, Size> pass;

  [[nodiscard]] std::size_t blocks() const noexcept { return pass.rows.grid.blocks_of(pass.rows.grid.heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const fragment_gradient_rows& rows = pass.rows;
    const fragment_part own = rows.grid.queries_of(index);
    block.phase([&](unsigned lane, lane_type& mine) {
      pass.fetch_queries(lane, block.shared(), own);
      const head_rows<bf16> dcontext = rows.rounded(own.row(), own.head);
      block.shared().own[1].template copy<Unit>(lane, dcontext, own.some, rows.grid.size);
      pass.fetch(lane, block.shared(), own, 0);
      kernel::run_pack<2>([&](std::size_t half) {
        const unsigned row = row_of_warp(lane) + fragment_scores::row(lane, 2 * half);
        mine.mean[half] = row < own.some ? rows.mean(own.row() + row, own.head) : 0;
      });
      for (auto& sums : mine.sum)
        for (float& sum : sums) sum = 0;
      Unit::template wait_but<0>();
    });
    pass.each_score(block, own, [](unsigned lane, lane_type& mine, fragment_scores& p, const auto& keys, unsigned at) {
      kernel::run_pack<8>([&](std::size_t i) { p.probability(i) *= p.gradient(i) - mine.mean[i % 4 / 2]; });
      keys.template add_product<Unit>(lane, mine.sum, p.of[0], at);
    });
    block.phase([&](unsigned lane, lane_type& mine) {
      const auto to = rows.dqueries.part(own.row(), rows.grid.column(own.head));
      store_sums<Size>(lane, mine.sum, to, own.some, rows.grid.size, rows.grid.scale);
    });
  }
};

/// The gradients of keys and values. A block has 64 keys of one head, and goes over the queries that see them of all
/// heads that share it, in order.
template <tensor_unit Unit, unsigned Size>
struct attention_key_gradient_fragments {
  using unit = Unit;
  static constexpr unsigned lanes = fragment_lanes;
  static constexpr tile_access access = tile_access::packed;
  using shared_type = gradient_tiles<Size>;
  static constexpr unsigned others = shared_type::others;
  struct lane_type {
    held_operands<Size <= 64 ? 2 : 0, Size> held;
    float of_key[Size / 8][4];
    float of_value[Size / 8][4];
    float exponent;  // of 2 that the sum is of one query of the tile, and its mean
    float mean;
  };

  fragment_gradient_rows rows;
  head_rows<float> dkeys;
  head_rows<float> dvalues;

  [[nodiscard]] std::size_t blocks() const noexcept { return rows.grid.blocks_of(rows.grid.kv_heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const fragment_grid& grid = rows.grid;
    const fragment_part own = grid.keys_of(index);
    const std::size_t column = grid.column(own.head);
    const unsigned end = (own.head + 1) * grid.heads_each();
    asking_tile asking{own.head * grid.heads_each(), own.first, 0};
    block.phase([&](unsigned lane, lane_type& mine) {
      auto& tiles = block.shared();
      tiles.own[0].template copy<Unit>(lane, rows.keys.part(own.row(), column), own.some, grid.size);
      tiles.own[1].template copy<Unit>(lane, rows.values.part(own.row(), column), own.some, grid.size);
      fetch(lane, tiles, mine, own, asking);
      for (auto& sums : mine.of_key)
        for (float& sum : sums) sum = 0;
      for (auto& sums : mine.of_value)
        for (float& sum : sums) sum = 0;
      Unit::template wait_but<0>();
    });
    block.phase([&](unsigned lane, lane_type& mine) { mine.held.template load<Unit>(block.shared(), lane); });
    while (asking.head < end) {
      const asking_tile next = asking.next(own.first, grid.length);
      block.phase([&](unsigned lane, lane_type& mine) {
        const float exponent = mine.exponent, mean = mine.mean;
        if (next.head < end) fetch(lane, block.shared(), mine, own, next);
        kernel::run_pack<others / 16>([&](std::size_t j) {
          const unsigned at = static_cast<unsigned>(j) * 16, key = own.first + row_of_warp(lane);
          if (asking.query + at < key) return;
          fragment_scores p;
          mine.held.template score<Unit>(p, block.shared(), asking.turn, lane, at);
          weigh(lane, p, exponent, mean, at, asking.query + at, key);
          block.shared().other[asking.turn][1].template add_product<Unit>(lane, mine.of_value, p.of[0], at);
          block.shared().other[asking.turn][0].template add_product<Unit>(lane, mine.of_key, p.of[1], at);
        });
        Unit::template wait_but<0>();
      });
      asking = next;
    }
    block.phase([&](unsigned lane, lane_type& mine) {
      store_sums<Size>(lane, mine.of_key, dkeys.part(own.row(), column), own.some, grid.size, grid.scale);
      store_sums<Size>(lane, mine.of_value, dvalues.part(own.row(), column), own.some, grid.size, 1);
    });
  }

 private:
  // A tile of queries of a head, and which of two tiles in memory it has.
  struct asking_tile {
    unsigned head;
    unsigned query;
    unsigned turn;

    [[nodiscard]] BELAY_HD asking_tile next(unsigned first, unsigned length) const noexcept {
      return length - query > others ? asking_tile{head, query + others, turn ^ 1}
                                     : asking_tile{head + 1, first, turn ^ 1};
    }
  };
  // Starts to copy a tile, and loads the numbers of one of its queries, which the other lanes of the warp ask this one
  // for. A query that is none has no probabilities.
  BELAY_HD void fetch(unsigned lane, shared_type& to, lane_type& mine, const fragment_part& own,
                      const asking_tile& tile) const {
    const fragment_grid& grid = rows.grid;
    const std::size_t row = own.begin + tile.query;
    const unsigned some = grid.length - tile.query, query = lane % others;
    const head_rows<bf16> dcontext = rows.rounded(row, tile.head);
    auto& tiles = to.other[tile.turn];
    tiles[0].template copy<Unit>(lane, rows.queries.part(row, grid.column(tile.head)), some, grid.size);
    tiles[1].template copy<Unit>(lane, dcontext, some, grid.size);
    Unit::close_group();
    const std::size_t first = own.begin * grid.heads + std::size_t{tile.head} * grid.length + tile.query;
    mine.exponent = query < some ? rows.exponent(first + query) : infinite<float>;
    mine.mean = query < some ? rows.mean(row + query, tile.head) : 0;
  }
  // Makes scores of queries from `query` on and keys from `key` on probabilities, and gradients of these those of the
  // scores.
  BELAY_HD void weigh(unsigned lane, fragment_scores& p, float exponent, float mean, unsigned at, unsigned query,
                      unsigned key) const {
    kernel::run_pack<4>([&](std::size_t i) {
      // The lane has sums of four queries, each with two of its keys.
      const std::size_t first = i / 2 * 4 + i % 2;
      const float its_exponent = Unit::from(at + p.column(lane, first), exponent);
      const float its_mean = Unit::from(at + p.column(lane, first), mean);
      kernel::run_pack<2>([&](std::size_t half) {
        const std::size_t sum = first + 2 * half;
        float& x = p.probability(sum);
        x = Unit::power_of_two(x * rows.grid.binary_scale() - its_exponent);
        if (query == key && p.column(lane, sum) < p.row(lane, sum)) x = 0;
        p.gradient(sum) = x * (p.gradient(sum) - its_mean);
      });
    });
  }
};

/// Whether kernels of fragments take a call: its heads have up to 128 columns, a multiple of 8, and its rows are
/// aligned to 16 bytes.
[[nodiscard]] inline bool are_fragments(const attention_sizes& of) noexcept {
  return of.head_size > 0 && of.head_size <= 128 && of.head_size % 8 == 0 && of.length < 0x7fffffffU;
}
[[nodiscard]] inline bool are_fragments(const attention_call<bf16>& call) noexcept {
  return are_fragments(call.sizes) && rows_are_packed(call.queries, call.keys, call.values, call.context);
}
[[nodiscard]] inline bool are_fragments(const attention_gradient_call<bf16>& call) noexcept {
  return are_fragments(call.sizes) && rows_are_packed(call.queries, call.keys, call.values, call.dcontext,
                                                      call.dqueries, call.dkeys, call.dvalues);
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
template <tensor_unit Unit, unsigned Size, class By>
bool queue_fragments(By& by, const attention_gradient_call<bf16>& call) {
  const fragment_gradient_rows rows(call);
  return by.blocks(attention_mean_fragments<Unit, Size>{{rows}}) &&
         by.blocks(attention_key_gradient_fragments<Unit, Size>{rows, call.dkeys, call.dvalues}) &&
         by.blocks(attention_query_gradient_fragments<Unit, Size>{{rows}});
}
template <tensor_unit Unit, class By, class T>
bool queue_attention(By& by, const attention_gradient_call<T>& call) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (are_fragments(call))
      return call.sizes.head_size <= 64 ? queue_fragments<Unit, 64>(by, call) : queue_fragments<Unit, 128>(by, call);
  }
  return queue_attention_tiles(by, call);
}

}  // namespace belay::inline BELAY_ABI::cuda
