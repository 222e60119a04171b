// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Causal attention as kernels of blocks: a block has some queries and goes over the keys that they see, tile by tile,
// with a running maximum and sum (Dao et al., "FlashAttention", 2022), so that no probability goes to memory. The
// backward makes them again from the logarithms of the sums: one kernel for keys and values, whose block has some keys
// and goes over the queries that see them, one for queries. All sums have a fixed order. Heads may have any size: of
// one that is larger than a block's columns, scores are computed again for each range of columns.
//
//   belay::cuda::queue_attention_tiles(by, call);  // by.blocks(kernel), by.teams(count, kernel)
// IWYU pragma: private, include "belay/backend/cuda/runtime_api.cuh"
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "belay/backend/cuda/grouped_tiles.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/operand.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

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

/// The forward. A block has 32 queries of one head.
template <class T>
struct attention_tiles {
  using number = compute_type_t<T>;
  static constexpr unsigned lanes = attention_lanes;
  static constexpr tile_access access = tile_access::single;
  static constexpr std::size_t columns = sizeof(number) > 4 ? 64 : 128;
  struct shared_type {
    inner_product_tiles<number> factors;
    number weights[attention_side][attention_side + 1];
    number values[attention_side][columns];
  };
  struct lane_type {
    number score[scores_a_lane];
    number sum[columns / lanes_a_row];
    number largest;
    number total;
  };

  attention_grid grid;
  head_rows<const T> queries;
  head_rows<const T> keys;
  head_rows<const T> values;
  head_rows<T> context;
  number* log_sums;

  explicit attention_tiles(const attention_call<T>& call) noexcept
      : grid(call.sizes, call.queries.rows),
        queries(call.queries),
        keys(call.keys),
        values(call.values),
        context(call.context),
        log_sums(call.log_sums) {}

  [[nodiscard]] BELAY_HD std::size_t blocks() const noexcept { return grid.blocks_of(grid.heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const attention_part own = grid.part_of(index, grid.heads);
    const head_rows<const T> q = queries.part(own.row, own.head * grid.size);
    const std::size_t shared_head = grid.kv_head(own.head) * grid.size;
    for (std::size_t column = 0; column < grid.size; column += columns) {
      block.phase([](unsigned, lane_type& lane) {
        lane.largest = -infinite<number>;
        lane.total = 0;
        for (number& sum : lane.sum) sum = 0;
      });
      for (std::size_t key = 0; key < own.first + own.count; key += attention_side) {
        const std::size_t some = grid.some_from(key), key_row = own.begin + key;
        add_inner_products(
            block, q, own.count, keys.part(key_row, shared_head), some, grid.size,
            [](lane_type & lane) -> auto& { return lane.score; });
        block.phase([&](unsigned lane, lane_type& mine) {
          for (std::size_t j = 0; j < scores_a_lane; ++j) {
            const bool seen = own.sees(row_of(lane), key, first_score_of(lane) + j, some);
            block.shared().weights[row_of(lane)][first_score_of(lane) + j] =
                seen ? mine.score[j] * static_cast<number>(grid.scale) : -infinite<number>;
          }
          load_rows<columns>(lane, block.shared().values, values.part(key_row, shared_head), some, column, grid.size);
        });
        block.phase([&](unsigned lane, lane_type& mine) {
          const auto& scores = block.shared().weights[row_of(lane)];
          number largest = mine.largest;
          for (std::size_t j = 0; j < attention_side; ++j) largest = scores[j] > largest ? scores[j] : largest;
          const number kept = kernel::exponential(mine.largest - largest);
          mine.largest = largest;
          mine.total *= kept;
          for (number& sum : mine.sum) sum *= kept;
          for (std::size_t j = 0; j < scores_a_lane; ++j)
            mine.score[j] = kernel::exponential(scores[first_score_of(lane) + j] - largest);
        });
        block.phase([&](unsigned lane, lane_type& mine) {
          for (std::size_t j = 0; j < scores_a_lane; ++j)
            block.shared().weights[row_of(lane)][first_score_of(lane) + j] = mine.score[j];
        });
        block.phase([&](unsigned lane, lane_type& mine) {
          const auto& weights = block.shared().weights[row_of(lane)];
          for (std::size_t j = 0; j < attention_side; ++j) {
            mine.total += weights[j];
            add_row<columns>(lane, mine.sum, weights[j], block.shared().values[j]);
          }
        });
      }
      block.phase([&](unsigned lane, lane_type& mine) {
        const std::size_t row = row_of(lane);
        if (row >= own.count) return;
        for (number& sum : mine.sum) sum /= mine.total;
        store_row<columns>(lane, mine.sum, context.part(own.row, own.head * grid.size), column, grid.size);
        if (column == 0 && lane % lanes_a_row == 0)
          log_sums[own.number * grid.length + own.first + row] = mine.largest + kernel::logarithm(mine.total);
      });
    }
  }
};

/// The sizes and rows that the kernels of the backward read; they write `dqueries` too.
template <class T>
struct attention_gradient_rows {
  using number = compute_type_t<T>;

  attention_grid grid;
  head_rows<const T> queries;
  head_rows<const T> keys;
  head_rows<const T> values;
  head_rows<const number> dcontext;
  const number* log_sums;
  head_rows<number> dqueries;  // holds, until it is written, of each row and head the mean in its first column

  explicit attention_gradient_rows(const attention_gradient_call<T>& call) noexcept
      : grid(call.sizes, call.queries.rows),
        queries(call.queries),
        keys(call.keys),
        values(call.values),
        dcontext(call.dcontext),
        log_sums(call.log_sums),
        dqueries(call.dqueries) {}

  /// The probability that `score` is, of a key that query `position` of a head sees.
  [[nodiscard]] BELAY_HD number probability(number score, std::size_t head_number,
                                            std::size_t position) const noexcept {
    return kernel::exponential(score * static_cast<number>(grid.scale) -
                               log_sums[head_number * grid.length + position]);
  }
};

/// The mean of the gradients of a row's probabilities, each weighted by itself: a row of a head an index, from the
/// context and its gradient.
template <kernel::real T>
struct attention_means {
  head_rows<const T> context;
  head_rows<const T> dcontext;
  head_rows<T> means;
  std::size_t heads;
  std::size_t size;

  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t index) const noexcept {
    const std::size_t row = index / heads, column = index % heads * size;
    const T mean = kernel::row_dot(team, context.row(row) + column, dcontext.row(row) + column, size);
    if (team.lane == 0) means.row(row)[column] = mean;
  }
};

/// The mean of the gradients of a row's probabilities, each weighted by itself, from the probabilities: for a context
/// that has been rounded, whose rounding would be most of the error of what cancels here. A block has 32 queries of one
/// head.
template <class T>
struct attention_mean_tiles {
  using number = compute_type_t<T>;
  static constexpr unsigned lanes = attention_lanes;
  static constexpr tile_access access = tile_access::single;
  struct shared_type {
    inner_product_tiles<number> factors;
    number part[attention_lanes];
  };
  struct lane_type {
    number score[scores_a_lane];
    number dscore[scores_a_lane];
    number total;
  };

  attention_gradient_rows<T> rows;

  [[nodiscard]] BELAY_HD std::size_t blocks() const noexcept { return rows.grid.blocks_of(rows.grid.heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const attention_grid& grid = rows.grid;
    const attention_part own = grid.part_of(index, grid.heads);
    const std::size_t head = own.head * grid.size, shared_head = grid.kv_head(own.head) * grid.size;
    block.phase([](unsigned, lane_type& mine) { mine.total = 0; });
    for (std::size_t key = 0; key < own.first + own.count; key += attention_side) {
      const std::size_t some = grid.some_from(key), key_row = own.begin + key;
      add_inner_products(
          block, rows.queries.part(own.row, head), own.count, rows.keys.part(key_row, shared_head), some, grid.size,
          [](lane_type & lane) -> auto& { return lane.score; });
      add_inner_products(
          block, rows.dcontext.part(own.row, head), own.count, rows.values.part(key_row, shared_head), some, grid.size,
          [](lane_type & lane) -> auto& { return lane.dscore; });
      block.phase([&](unsigned lane, lane_type& mine) {
        for (std::size_t j = 0; j < scores_a_lane; ++j)
          if (own.sees(row_of(lane), key, first_score_of(lane) + j, some))
            mine.total += rows.probability(mine.score[j], own.number, own.first + row_of(lane)) * mine.dscore[j];
      });
    }
    block.phase([&](unsigned lane, lane_type& mine) { block.shared().part[lane] = mine.total; });
    block.phase([&](unsigned lane, lane_type&) {
      if (lane % lanes_a_row != 0 || row_of(lane) >= own.count) return;
      number mean = 0;
      for (std::size_t j = 0; j < lanes_a_row; ++j) mean += block.shared().part[lane + j];
      rows.dqueries.row(own.row + row_of(lane))[head] = mean;
    });
  }
};

/// The gradients of keys and values. A block has 32 keys of one head, and goes over the queries of all heads that share
/// it, in order.
template <class T>
struct attention_key_gradient_tiles {
  using number = compute_type_t<T>;
  static constexpr unsigned lanes = attention_lanes;
  static constexpr tile_access access = tile_access::single;
  static constexpr std::size_t columns = sizeof(number) > 4 ? 16 : 64;
  struct shared_type {
    inner_product_tiles<number> factors;
    number weights[attention_side][attention_side + 1];
    number dscores[attention_side][attention_side + 1];
    number queries[attention_side][columns];
    number dcontext[attention_side][columns];
  };
  struct lane_type {
    number score[scores_a_lane];
    number dscore[scores_a_lane];
    number of_key[columns / lanes_a_row];
    number of_value[columns / lanes_a_row];
  };

  attention_gradient_rows<T> rows;
  head_rows<number> dkeys;
  head_rows<number> dvalues;

  [[nodiscard]] BELAY_HD std::size_t blocks() const noexcept { return rows.grid.blocks_of(rows.grid.kv_heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const attention_grid& grid = rows.grid;
    const attention_part own = grid.part_of(index, grid.kv_heads);
    const std::size_t shared_head = own.head * grid.size;
    for (std::size_t column = 0; column < grid.size; column += columns) {
      block.phase([](unsigned, lane_type& mine) {
        for (number& sum : mine.of_key) sum = 0;
        for (number& sum : mine.of_value) sum = 0;
      });
      for (std::size_t head = own.head * grid.heads_each(); head < (own.head + 1) * grid.heads_each(); ++head)
        for (std::size_t query = own.first; query < grid.length; query += attention_side)
          add_queries(block, own, head, query, column);
      block.phase([&](unsigned lane, lane_type& mine) {
        if (row_of(lane) >= own.count) return;
        store_row<columns>(lane, mine.of_key, dkeys.part(own.row, shared_head), column, grid.size);
        store_row<columns>(lane, mine.of_value, dvalues.part(own.row, shared_head), column, grid.size);
      });
    }
  }

 private:
  // What 32 queries of a head add.
  template <class Block>
  BELAY_HD void add_queries(Block& block, const attention_part& own, std::size_t head, std::size_t query,
                            std::size_t column) const {
    const attention_grid& grid = rows.grid;
    const std::size_t some = grid.some_from(query), row = own.begin + query, shared_head = own.head * grid.size;
    const attention_part asking = grid.queries_of(own, head, query);
    const auto q = rows.queries.part(row, head * grid.size);
    const auto dout = rows.dcontext.part(row, head * grid.size);
    add_inner_products(
        block, q, some, rows.keys.part(own.row, shared_head), own.count, grid.size,
        [](lane_type & lane) -> auto& { return lane.score; });
    add_inner_products(
        block, dout, some, rows.values.part(own.row, shared_head), own.count, grid.size,
        [](lane_type & lane) -> auto& { return lane.dscore; });
    block.phase([&](unsigned lane, lane_type& mine) {
      const std::size_t i = row_of(lane);
      for (std::size_t j = 0; j < scores_a_lane; ++j) {
        const std::size_t key = first_score_of(lane) + j;
        number p = 0, ds = 0;
        if (asking.sees(i, own.first, key, own.count)) {
          p = rows.probability(mine.score[j], asking.number, query + i);
          ds = p * (mine.dscore[j] - rows.dqueries.row(row + i)[head * grid.size]) * static_cast<number>(grid.scale);
        }
        block.shared().weights[i][key] = p;
        block.shared().dscores[i][key] = ds;
      }
      load_rows<columns>(lane, block.shared().queries, q, some, column, grid.size);
      load_rows<columns>(lane, block.shared().dcontext, dout, some, column, grid.size);
    });
    block.phase([&](unsigned lane, lane_type& mine) {
      for (std::size_t i = 0; i < attention_side; ++i) {
        add_row<columns>(lane, mine.of_key, block.shared().dscores[i][row_of(lane)], block.shared().queries[i]);
        add_row<columns>(lane, mine.of_value, block.shared().weights[i][row_of(lane)], block.shared().dcontext[i]);
      }
    });
  }
};

/// The gradients of queries, in place of the means. A block has 32 queries of one head.
template <class T>
struct attention_query_gradient_tiles {
  using number = compute_type_t<T>;
  static constexpr unsigned lanes = attention_lanes;
  static constexpr tile_access access = tile_access::single;
  static constexpr std::size_t columns = sizeof(number) > 4 ? 64 : 128;
  struct shared_type {
    inner_product_tiles<number> factors;
    number dscores[attention_side][attention_side + 1];
    number keys[attention_side][columns];
  };
  struct lane_type {
    number score[scores_a_lane];
    number dscore[scores_a_lane];
    number sum[columns / lanes_a_row];
    number mean;
  };

  attention_gradient_rows<T> rows;

  [[nodiscard]] BELAY_HD std::size_t blocks() const noexcept { return rows.grid.blocks_of(rows.grid.heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const attention_grid& grid = rows.grid;
    const attention_part own = grid.part_of(index, grid.heads);
    const std::size_t head = own.head * grid.size, shared_head = grid.kv_head(own.head) * grid.size;
    block.phase([&](unsigned lane, lane_type& mine) {
      mine.mean = row_of(lane) < own.count ? rows.dqueries.row(own.row + row_of(lane))[head] : number(0);
    });
    for (std::size_t column = 0; column < grid.size; column += columns) {
      block.phase([](unsigned, lane_type& mine) {
        for (number& sum : mine.sum) sum = 0;
      });
      for (std::size_t key = 0; key < own.first + own.count; key += attention_side) {
        const std::size_t some = grid.some_from(key), key_row = own.begin + key;
        const auto k = rows.keys.part(key_row, shared_head);
        add_inner_products(
            block, rows.queries.part(own.row, head), own.count, k, some, grid.size,
            [](lane_type & lane) -> auto& { return lane.score; });
        add_inner_products(
            block, rows.dcontext.part(own.row, head), own.count, rows.values.part(key_row, shared_head), some,
            grid.size, [](lane_type & lane) -> auto& { return lane.dscore; });
        block.phase([&](unsigned lane, lane_type& mine) {
          for (std::size_t j = 0; j < scores_a_lane; ++j) {
            number ds = 0;
            if (own.sees(row_of(lane), key, first_score_of(lane) + j, some))
              ds = rows.probability(mine.score[j], own.number, own.first + row_of(lane)) *
                   (mine.dscore[j] - mine.mean) * static_cast<number>(grid.scale);
            block.shared().dscores[row_of(lane)][first_score_of(lane) + j] = ds;
          }
          load_rows<columns>(lane, block.shared().keys, k, some, column, grid.size);
        });
        block.phase([&](unsigned lane, lane_type& mine) {
          for (std::size_t j = 0; j < attention_side; ++j)
            add_row<columns>(lane, mine.sum, block.shared().dscores[row_of(lane)][j], block.shared().keys[j]);
        });
      }
      block.phase([&](unsigned lane, lane_type& mine) {
        if (row_of(lane) < own.count)
          store_row<columns>(lane, mine.sum, rows.dqueries.part(own.row, head), column, grid.size);
      });
    }
  }
};

/// Queues the forward; false where `by` could not.
template <class By, class T>
bool queue_attention_tiles(By& by, const attention_call<T>& call) {
  return by.blocks(attention_tiles<T>(call));
}
/// Queues the backward, one kernel after the other.
template <class By, class T>
bool queue_attention_tiles(By& by, const attention_gradient_call<T>& call) {
  const attention_gradient_rows<T> rows(call);
  bool queued = false;
  if constexpr (kernel::real<T>)
    queued = by.teams(
        call.queries.rows * call.sizes.heads,
        attention_means<T>{call.context, call.dcontext, call.dqueries, call.sizes.heads, call.sizes.head_size});
  else
    queued = by.blocks(attention_mean_tiles<T>{rows});
  return queued && by.blocks(attention_key_gradient_tiles<T>{rows, call.dkeys, call.dvalues}) &&
         by.blocks(attention_query_gradient_tiles<T>{rows});
}

}  // namespace belay::inline BELAY_ABI::cuda
