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

#include "belay/backend/cuda/tensor_tiles.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/operand.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Queries, or keys, of a tile. Eight lanes have two rows of it: of 32 scores each has four, and every eighth pack of
/// the columns of a sum, so that a pack which is read from memory of the block serves several sums in registers.
inline constexpr std::size_t attention_side = 32;
inline constexpr unsigned attention_lanes = 128;
inline constexpr std::size_t lanes_a_row = 8;
inline constexpr std::size_t rows_a_lane = attention_side * lanes_a_row / attention_lanes;
inline constexpr std::size_t keys_a_lane = attention_side / lanes_a_row;

/// The lane's rows and keys of a tile. Lanes that follow each other have rows that do.
[[nodiscard]] BELAY_HD constexpr std::size_t row_of(unsigned lane, std::size_t which) noexcept {
  return lane / lanes_a_row + which * (attention_side / rows_a_lane);
}
[[nodiscard]] BELAY_HD constexpr std::size_t key_of(unsigned lane, std::size_t which) noexcept {
  return lane % lanes_a_row + which * lanes_a_row;
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

/// A number for each of the lane's scores.
template <class Number>
using lane_scores = Number[rows_a_lane][keys_a_lane];

/// Columns of 32 rows in memory of a block, and a pack more: so eight lanes that read of rows which follow each other
/// meet in no bank.
template <class Number, std::size_t Columns>
struct alignas(16) tile_rows {
  static constexpr std::size_t pack = kernel::pack_size<Number>;
  Number of[attention_side][Columns + pack];

  /// Reads columns from `column` on of rows, of which there are `some`; zeros where there is nothing.
  template <tile_access Access, class T>
  BELAY_HD void load(unsigned lane, head_rows<T> from, std::size_t some, std::size_t column,
                     std::size_t size) noexcept {
    constexpr unsigned step = Access == tile_access::packed ? pack : 1, steps_a_row = Columns / step;
#if defined(__CUDA_ARCH__)
#pragma unroll 2  // more at once would take the registers of sums
#endif
    for (unsigned at = lane; at < attention_side * steps_a_row; at += attention_lanes) {
      const unsigned row = at / steps_a_row, i = at % steps_a_row * step;
      kernel::pack_of<Number, step> numbers = {};
      if (row < some && column + i < size) {
        const auto read = kernel::load_pack<step>(from.row(row), column + i);
        kernel::run_pack<step>([&](std::size_t e) { numbers.of[e] = kernel::widened(read.of[e]); });
      }
      kernel::store_pack(numbers, of[row], i);
    }
  }
};

/// Ranges of columns of two tiles of rows.
template <class Number>
struct inner_product_tiles {
  tile_rows<Number, attention_side> left;
  tile_rows<Number, attention_side> right;
};

/// scores_of(registers)[a][b] = the inner product of the lane's row a of `left` and its row b of `right`, over `size`
/// columns; 0 where one of them is none.
template <tile_access Access, kernel::block Block, class Left, class Right, class Scores>
BELAY_HD void add_inner_products(Block& block, head_rows<Left> left, std::size_t left_rows, head_rows<Right> right,
                                 std::size_t right_rows, std::size_t size, const Scores& scores_of) {
  for (std::size_t column = 0; column < size; column += attention_side) {
    block.phase([&](unsigned lane, auto& own) {
      auto& to = block.shared().factors;
      to.left.template load<Access>(lane, left, left_rows, column, size);
      to.right.template load<Access>(lane, right, right_rows, column, size);
      if (column == 0)
        for (auto& row : scores_of(own))
          for (auto& score : row) score = 0;
    });
    block.phase([&](unsigned lane, auto& own) {
      const auto& from = block.shared().factors;
      constexpr std::size_t pack = std::remove_cvref_t<decltype(from.left)>::pack;
      auto& scores = scores_of(own);
      for (std::size_t i = 0; i < attention_side; i += pack) {
        decltype(kernel::load_pack<pack>(from.left.of[0], 0)) x[rows_a_lane], y[keys_a_lane];
        for (std::size_t a = 0; a < rows_a_lane; ++a) x[a] = kernel::load_pack<pack>(from.left.of[row_of(lane, a)], i);
        for (std::size_t b = 0; b < keys_a_lane; ++b) y[b] = kernel::load_pack<pack>(from.right.of[key_of(lane, b)], i);
        for (std::size_t e = 0; e < pack; ++e)
          for (std::size_t a = 0; a < rows_a_lane; ++a)
            for (std::size_t b = 0; b < keys_a_lane; ++b) scores[a][b] += x[a].of[e] * y[b].of[e];
      }
    });
  }
}

/// The lane's columns of its rows of a sum.
template <class Number, std::size_t Columns>
struct lane_sums {
  static constexpr std::size_t pack = kernel::pack_size<Number>, packs = Columns / pack / lanes_a_row;
  kernel::pack_of<Number, pack> of[rows_a_lane][packs];

  BELAY_HD void clear() noexcept {
    each([](std::size_t, Number& sum) { sum = 0; });
  }
  /// Calls f(a, sum) for each sum of row a of the lane's.
  template <class F>
  BELAY_HD void each(const F& f) noexcept {
    for (std::size_t a = 0; a < rows_a_lane; ++a)
      for (auto& columns : of[a])
        for (Number& sum : columns.of) f(a, sum);
  }
  /// Those of row r += weights(r, j) times those of row j of a tile, for each j. Calls see(a, weights(r, j)) for the
  /// lane's row a.
  template <class See>
  BELAY_HD void add(unsigned lane, const tile_rows<Number, attention_side>& weights,
                    const tile_rows<Number, Columns>& rows, const See& see) noexcept {
    for (std::size_t j = 0; j < attention_side; ++j) {
      Number by[rows_a_lane];
      for (std::size_t a = 0; a < rows_a_lane; ++a) see(a, by[a] = weights.of[row_of(lane, a)][j]);
      for (std::size_t p = 0; p < packs; ++p) {
        const auto x = kernel::load_pack<pack>(rows.of[j], column_of(lane, p));
        for (std::size_t a = 0; a < rows_a_lane; ++a)
          for (std::size_t e = 0; e < pack; ++e) of[a][p].of[e] += by[a] * x.of[e];
      }
    }
  }
  BELAY_HD void add(unsigned lane, const tile_rows<Number, attention_side>& weights,
                    const tile_rows<Number, Columns>& rows) noexcept {
    add(lane, weights, rows, [](std::size_t, Number) {});
  }
  /// Writes those of rows, of which there are `some`, from `column` on.
  template <tile_access Access, class T>
  BELAY_HD void store(unsigned lane, head_rows<T> to, std::size_t some, std::size_t column,
                      std::size_t size) const noexcept {
    kernel::run_pack<rows_a_lane>([&](std::size_t a) {
      if (row_of(lane, a) >= some) return;
      T* const row = to.row(row_of(lane, a)) + column;
      kernel::run_pack<packs>([&](std::size_t p) {
        const std::size_t first = column_of(lane, p);
        if (column + first >= size) return;
        if constexpr (Access == tile_access::packed) {
          kernel::pack_of<T, pack> written;
          kernel::run_pack<pack>([&](std::size_t e) { written.of[e] = static_cast<T>(of[a][p].of[e]); });
          kernel::store_global_pack(written, row, first);
        } else {
          kernel::run_pack<pack>([&](std::size_t e) {
            if (column + first + e < size) row[first + e] = static_cast<T>(of[a][p].of[e]);
          });
        }
      });
    });
  }

 private:
  [[nodiscard]] BELAY_HD static constexpr std::size_t column_of(unsigned lane, std::size_t p) noexcept {
    return (p * lanes_a_row + lane % lanes_a_row) * pack;
  }
};

/// The forward. A block has 32 queries of one head.
template <class T, tile_access Access>
struct attention_tiles {
  using number = compute_type_t<T>;
  static constexpr unsigned lanes = attention_lanes;
  static constexpr tile_access access = Access;
  static constexpr std::size_t columns = sizeof(number) > 4 ? 64 : 128;
  struct shared_type {
    inner_product_tiles<number> factors;
    tile_rows<number, attention_side> weights;
    tile_rows<number, columns> values;
    number largest[attention_side][lanes_a_row];
  };
  struct lane_type {
    lane_scores<number> score;
    lane_sums<number, columns> sum;
    number largest[rows_a_lane];
    number total[rows_a_lane];
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
        for (number& largest : lane.largest) largest = -infinite<number>;
        for (number& total : lane.total) total = 0;
        lane.sum.clear();
      });
      for (std::size_t key = 0; key < own.first + own.count; key += attention_side) {
        const std::size_t some = grid.some_from(key), key_row = own.begin + key;
        add_inner_products<Access>(
            block, q, own.count, keys.part(key_row, shared_head), some, grid.size,
            [](lane_type & lane) -> auto& { return lane.score; });
        block.phase([&](unsigned lane, lane_type& mine) {
          for (std::size_t a = 0; a < rows_a_lane; ++a) {
            number largest = -infinite<number>;
            for (std::size_t b = 0; b < keys_a_lane; ++b) {
              const bool seen = own.sees(row_of(lane, a), key, key_of(lane, b), some);
              const number score = seen ? mine.score[a][b] * static_cast<number>(grid.scale) : -infinite<number>;
              mine.score[a][b] = score;
              largest = score > largest ? score : largest;
            }
            block.shared().largest[row_of(lane, a)][lane % lanes_a_row] = largest;
          }
          block.shared().values.template load<Access>(lane, values.part(key_row, shared_head), some, column, grid.size);
        });
        block.phase([&](unsigned lane, lane_type& mine) {
          for (std::size_t a = 0; a < rows_a_lane; ++a) {
            number largest = mine.largest[a];
            for (const number each : block.shared().largest[row_of(lane, a)]) largest = each > largest ? each : largest;
            const number kept = kernel::exponential(mine.largest[a] - largest);
            mine.largest[a] = largest;
            mine.total[a] *= kept;
            for (auto& sums : mine.sum.of[a])
              for (number& sum : sums.of) sum *= kept;
            for (std::size_t b = 0; b < keys_a_lane; ++b)
              block.shared().weights.of[row_of(lane, a)][key_of(lane, b)] =
                  kernel::exponential(mine.score[a][b] - largest);
          }
        });
        block.phase([&](unsigned lane, lane_type& mine) {
          mine.sum.add(lane, block.shared().weights, block.shared().values,
                       [&](std::size_t a, number weight) { mine.total[a] += weight; });
        });
      }
      block.phase([&](unsigned lane, lane_type& mine) {
        for (std::size_t a = 0; a < rows_a_lane; ++a) {
          const std::size_t row = row_of(lane, a);
          if (log_sums != nullptr && column == 0 && lane % lanes_a_row == 0 && row < own.count)
            log_sums[own.number * grid.length + own.first + row] = mine.largest[a] + kernel::logarithm(mine.total[a]);
        }
        mine.sum.each([&](std::size_t a, number& sum) { sum /= mine.total[a]; });
        mine.sum.template store<Access>(lane, context.part(own.row, own.head * grid.size), own.count, column,
                                        grid.size);
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

  /// The probabilities that scores of query `position` of a head are, of keys that it sees.
  struct row_probabilities {
    number scale, log_sum;
    [[nodiscard]] BELAY_HD number operator()(number score) const noexcept {
      return kernel::exponential(score * scale - log_sum);
    }
  };
  [[nodiscard]] BELAY_HD row_probabilities probabilities(std::size_t head_number, std::size_t position) const noexcept {
    return {static_cast<number>(grid.scale), log_sums[head_number * grid.length + position]};
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
template <class T, tile_access Access>
struct attention_mean_tiles {
  using number = compute_type_t<T>;
  static constexpr unsigned lanes = attention_lanes;
  static constexpr tile_access access = Access;
  struct shared_type {
    inner_product_tiles<number> factors;
    number part[attention_side][lanes_a_row];
  };
  struct lane_type {
    lane_scores<number> score;
    lane_scores<number> dscore;
    number total[rows_a_lane];
  };

  attention_gradient_rows<T> rows;

  [[nodiscard]] BELAY_HD std::size_t blocks() const noexcept { return rows.grid.blocks_of(rows.grid.heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const attention_grid& grid = rows.grid;
    const attention_part own = grid.part_of(index, grid.heads);
    const std::size_t head = own.head * grid.size, shared_head = grid.kv_head(own.head) * grid.size;
    block.phase([](unsigned, lane_type& mine) {
      for (number& total : mine.total) total = 0;
    });
    for (std::size_t key = 0; key < own.first + own.count; key += attention_side) {
      const std::size_t some = grid.some_from(key), key_row = own.begin + key;
      add_inner_products<Access>(
          block, rows.queries.part(own.row, head), own.count, rows.keys.part(key_row, shared_head), some, grid.size,
          [](lane_type & lane) -> auto& { return lane.score; });
      add_inner_products<Access>(
          block, rows.dcontext.part(own.row, head), own.count, rows.values.part(key_row, shared_head), some, grid.size,
          [](lane_type & lane) -> auto& { return lane.dscore; });
      block.phase([&](unsigned lane, lane_type& mine) {
        for (std::size_t a = 0; a < rows_a_lane; ++a) {
          const std::size_t row = row_of(lane, a);
          if (row >= own.count) continue;
          const auto probability = rows.probabilities(own.number, own.first + row);
          for (std::size_t b = 0; b < keys_a_lane; ++b)
            if (own.sees(row, key, key_of(lane, b), some))
              mine.total[a] += probability(mine.score[a][b]) * mine.dscore[a][b];
        }
      });
    }
    block.phase([&](unsigned lane, lane_type& mine) {
      for (std::size_t a = 0; a < rows_a_lane; ++a)
        block.shared().part[row_of(lane, a)][lane % lanes_a_row] = mine.total[a];
    });
    block.phase([&](unsigned lane, lane_type&) {
      if (lane >= own.count) return;
      number mean = 0;
      for (const number each : block.shared().part[lane]) mean += each;
      rows.dqueries.row(own.row + lane)[head] = mean;
    });
  }
};

/// The gradients of keys and values. A block has 32 keys of one head, and goes over the queries of all heads that share
/// it, in order.
template <class T, tile_access Access>
struct attention_key_gradient_tiles {
  using number = compute_type_t<T>;
  static constexpr unsigned lanes = attention_lanes;
  static constexpr tile_access access = Access;
  static constexpr std::size_t columns = sizeof(number) > 4 ? 16 : 64;
  struct shared_type {
    inner_product_tiles<number> factors;
    tile_rows<number, attention_side> weights;  // those of a key are a row
    tile_rows<number, attention_side> dscores;
    tile_rows<number, columns> queries;
    tile_rows<number, columns> dcontext;
  };
  struct lane_type {
    lane_scores<number> score;
    lane_scores<number> dscore;
    lane_sums<number, columns> of_key;
    lane_sums<number, columns> of_value;
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
        mine.of_key.clear();
        mine.of_value.clear();
      });
      for (std::size_t head = own.head * grid.heads_each(); head < (own.head + 1) * grid.heads_each(); ++head)
        for (std::size_t query = own.first; query < grid.length; query += attention_side)
          add_queries(block, own, head, query, column);
      block.phase([&](unsigned lane, lane_type& mine) {
        mine.of_key.template store<Access>(lane, dkeys.part(own.row, shared_head), own.count, column, grid.size);
        mine.of_value.template store<Access>(lane, dvalues.part(own.row, shared_head), own.count, column, grid.size);
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
    add_inner_products<Access>(
        block, q, some, rows.keys.part(own.row, shared_head), own.count, grid.size,
        [](lane_type & lane) -> auto& { return lane.score; });
    add_inner_products<Access>(
        block, dout, some, rows.values.part(own.row, shared_head), own.count, grid.size,
        [](lane_type & lane) -> auto& { return lane.dscore; });
    block.phase([&](unsigned lane, lane_type& mine) {
      for (std::size_t a = 0; a < rows_a_lane; ++a) {
        const std::size_t i = row_of(lane, a);
        lane_scores<number>& p = mine.score;
        lane_scores<number>& ds = mine.dscore;
        if (i < some) {
          const auto probability = rows.probabilities(asking.number, query + i);
          const number mean = rows.dqueries.row(row + i)[head * grid.size];
          for (std::size_t b = 0; b < keys_a_lane; ++b) {
            const bool seen = asking.sees(i, own.first, key_of(lane, b), own.count);
            p[a][b] = seen ? probability(p[a][b]) : number(0);
            ds[a][b] = seen ? p[a][b] * (ds[a][b] - mean) * static_cast<number>(grid.scale) : number(0);
          }
        }
        for (std::size_t b = 0; b < keys_a_lane; ++b) {
          block.shared().weights.of[key_of(lane, b)][i] = i < some ? p[a][b] : number(0);
          block.shared().dscores.of[key_of(lane, b)][i] = i < some ? ds[a][b] : number(0);
        }
      }
      block.shared().queries.template load<Access>(lane, q, some, column, grid.size);
      block.shared().dcontext.template load<Access>(lane, dout, some, column, grid.size);
    });
    block.phase([&](unsigned lane, lane_type& mine) {
      mine.of_key.add(lane, block.shared().dscores, block.shared().queries);
      mine.of_value.add(lane, block.shared().weights, block.shared().dcontext);
    });
  }
};

/// The gradients of queries, in place of the means. A block has 32 queries of one head.
template <class T, tile_access Access>
struct attention_query_gradient_tiles {
  using number = compute_type_t<T>;
  static constexpr unsigned lanes = attention_lanes;
  static constexpr tile_access access = Access;
  static constexpr std::size_t columns = sizeof(number) > 4 ? 64 : 128;
  struct shared_type {
    inner_product_tiles<number> factors;
    tile_rows<number, attention_side> dscores;
    tile_rows<number, columns> keys;
  };
  struct lane_type {
    lane_scores<number> score;
    lane_scores<number> dscore;
    lane_sums<number, columns> sum;
    number mean[rows_a_lane];
  };

  attention_gradient_rows<T> rows;

  [[nodiscard]] BELAY_HD std::size_t blocks() const noexcept { return rows.grid.blocks_of(rows.grid.heads); }

  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    const attention_grid& grid = rows.grid;
    const attention_part own = grid.part_of(index, grid.heads);
    const std::size_t head = own.head * grid.size, shared_head = grid.kv_head(own.head) * grid.size;
    block.phase([&](unsigned lane, lane_type& mine) {
      for (std::size_t a = 0; a < rows_a_lane; ++a)
        mine.mean[a] = row_of(lane, a) < own.count ? rows.dqueries.row(own.row + row_of(lane, a))[head] : number(0);
    });
    for (std::size_t column = 0; column < grid.size; column += columns) {
      block.phase([](unsigned, lane_type& mine) { mine.sum.clear(); });
      for (std::size_t key = 0; key < own.first + own.count; key += attention_side) {
        const std::size_t some = grid.some_from(key), key_row = own.begin + key;
        const auto k = rows.keys.part(key_row, shared_head);
        add_inner_products<Access>(
            block, rows.queries.part(own.row, head), own.count, k, some, grid.size,
            [](lane_type & lane) -> auto& { return lane.score; });
        add_inner_products<Access>(
            block, rows.dcontext.part(own.row, head), own.count, rows.values.part(key_row, shared_head), some,
            grid.size, [](lane_type & lane) -> auto& { return lane.dscore; });
        block.phase([&](unsigned lane, lane_type& mine) {
          for (std::size_t a = 0; a < rows_a_lane; ++a) {
            const std::size_t row = row_of(lane, a);
            auto* const to = block.shared().dscores.of[row];
            for (std::size_t b = 0; b < keys_a_lane; ++b) to[key_of(lane, b)] = 0;
            if (row >= own.count) continue;
            const auto probability = rows.probabilities(own.number, own.first + row);
            for (std::size_t b = 0; b < keys_a_lane; ++b)
              if (own.sees(row, key, key_of(lane, b), some))
                to[key_of(lane, b)] = probability(mine.score[a][b]) * (mine.dscore[a][b] - mine.mean[a]) *
                                      static_cast<number>(grid.scale);
          }
          block.shared().keys.template load<Access>(lane, k, some, column, grid.size);
        });
        block.phase(
            [&](unsigned lane, lane_type& mine) { mine.sum.add(lane, block.shared().dscores, block.shared().keys); });
      }
      block.phase([&](unsigned lane, lane_type& mine) {
        mine.sum.template store<Access>(lane, rows.dqueries.part(own.row, head), own.count, column, grid.size);
      });
    }
  }
};

/// Calls `queue` for tiles of packed rows, where all of these are, and heads begin at packs of them.
template <class Number, class Queue, class... Rows>
bool queue_by_rows(const Queue& queue, const attention_sizes& sizes, const Rows&... rows) {
  return sizes.head_size % kernel::pack_size<Number> == 0 && rows_are_packed(rows...)
             ? queue.template operator()<tile_access::packed>()
             : queue.template operator()<tile_access::single>();
}
/// Queues the forward; false where `by` could not.
template <class By, class T>
bool queue_attention_tiles(By& by, const attention_call<T>& call) {
  const auto queue = [&]<tile_access Access>() { return by.blocks(attention_tiles<T, Access>(call)); };
  return queue_by_rows<compute_type_t<T>>(queue, call.sizes, call.queries, call.keys, call.values, call.context);
}
/// Queues the backward, one kernel after the other.
template <class By, class T>
bool queue_attention_tiles(By& by, const attention_gradient_call<T>& call) {
  const auto queue = [&]<tile_access Access>() {
    const attention_gradient_rows<T> rows(call);
    bool queued = false;
    if constexpr (kernel::real<T>)
      queued = by.teams(
          call.queries.rows * call.sizes.heads,
          attention_means<T>{call.context, call.dcontext, call.dqueries, call.sizes.heads, call.sizes.head_size});
    else
      queued = by.blocks(attention_mean_tiles<T, Access>{rows});
    return queued && by.blocks(attention_key_gradient_tiles<T, Access>{rows, call.dkeys, call.dvalues}) &&
           by.blocks(attention_query_gradient_tiles<T, Access>{rows});
  };
  return queue_by_rows<compute_type_t<T>>(queue, call.sizes, call.queries, call.keys, call.values, call.dcontext,
                                          call.dqueries, call.dkeys, call.dvalues);
}

}  // namespace belay::inline BELAY_ABI::cuda
