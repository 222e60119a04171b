// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Products of experts as kernels of blocks, one tile of a result a block. The ends of the experts' rows are read by the
// device alone: there are as many blocks as any ends could need, and each finds its expert. An element is summed over
// ascending depth by one lane, or by one fragment of a warp, so that its bits depend on no other.
//
//   using tiles = belay::cuda::scalar_tiles<float>;
//   const belay::cuda::grouped_rows<tiles, float, float, float, std::int32_t> all{{c, a, b, ends}, found};
//   launch_blocks(stream, all.blocks(), all);
#pragma once

#include <concepts>
#include <cstddef>

#include "belay/backend/cuda/element_products.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/view.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Tiles of `each` that hold `count`.
[[nodiscard]] BELAY_HD constexpr std::size_t tiles_of(std::size_t count, std::size_t each) noexcept {
  return (count + each - 1) / each;
}

/// Fused multiply and add of numbers: 4 x 4 sums a lane.
template <class Number>
struct scalar_tiles {
  /// Lanes of a block, and the tile that it computes: rows, columns, the depth of one pass, and what one lane has of
  /// it.
  static constexpr unsigned lanes = 256;
  static constexpr std::size_t rows = 64, columns = 64, depth = 16, own_rows = 4, own_columns = 4;
  using element = Number;

  /// Memory that the lanes of a block share: tiles of both operands.
  struct shared_type {
    /// One row or column more than the tile, so that lanes read other banks.
    Number a[depth][rows + 1];
    Number b[depth][columns];
  };
  /// The sums that one lane keeps.
  struct lane_type {
    /// Its sums of the tile.
    Number sum[own_rows][own_columns];
  };

  /// Puts an element of an operand's tile where `multiply` reads it.
  BELAY_HD static void put_a(shared_type& to, std::size_t i, std::size_t k, Number x) noexcept { to.a[k][i] = x; }
  BELAY_HD static void put_b(shared_type& to, std::size_t k, std::size_t j, Number x) noexcept { to.b[k][j] = x; }

  /// Sets the lane's sums to zero; adds the products of the tiles in `from` to them.
  BELAY_HD static void clear(unsigned, lane_type& own) noexcept {
    for (auto& row : own.sum)
      for (Number& sum : row) sum = 0;
  }
  BELAY_HD static void multiply(const shared_type& from, unsigned lane, lane_type& own) noexcept {
    const std::size_t row = first_row(lane), column = first_column(lane);
    for (std::size_t k = 0; k < depth; ++k)
      for (std::size_t i = 0; i < own_rows; ++i)
        for (std::size_t j = 0; j < own_columns; ++j) own.sum[i][j] += from.a[k][row + i] * from.b[k][column + j];
  }
  /// visit(row, column, sum) of each element of the tile.
  template <kernel::block Block, class Visit>
  BELAY_HD static void each_sum(Block& block, const Visit& visit) {
    block.phase([&](unsigned lane, lane_type& own) {
      for (std::size_t i = 0; i < own_rows; ++i)
        for (std::size_t j = 0; j < own_columns; ++j) visit(first_row(lane) + i, first_column(lane) + j, own.sum[i][j]);
    });
  }

 private:
  [[nodiscard]] BELAY_HD static constexpr std::size_t first_row(unsigned lane) noexcept {
    return lane / (columns / own_columns) * own_rows;
  }
  [[nodiscard]] BELAY_HD static constexpr std::size_t first_column(unsigned lane) noexcept {
    return lane % (columns / own_columns) * own_columns;
  }
};

/// Products of bf16, summed in float by what multiplies 16 x 16 elements a warp: a `Fragment` has clear(lane),
/// add(lane, a, stride, b, stride) and store(lane, floats, stride), which all lanes of a warp call.
template <class Fragment>
struct fragment_tiles {
  /// Lanes of a block, and the tile that its four warps compute in fragments of `side` rows and columns.
  static constexpr unsigned lanes = 128;
  static constexpr std::size_t rows = 64, columns = 64, depth = 32, side = 16, each_way = 2;
  using element = bf16;

  /// Rows are apart by what keeps each fragment aligned to 32 bytes and off the banks of the next.
  struct shared_type {
    /// Padded rows, aligned as fragments are loaded.
    alignas(32) bf16 a[rows][depth + 8];
    alignas(32) bf16 b[depth][columns + 8];
    alignas(32) float sums[rows][columns + 8];
  };
  /// The sums that one lane keeps.
  struct lane_type {
    /// Its part of the fragments of its warp.
    Fragment sum[each_way][each_way];
  };

  /// Puts an element of an operand's tile where `multiply` reads it.
  BELAY_HD static void put_a(shared_type& to, std::size_t i, std::size_t k, bf16 x) noexcept { to.a[i][k] = x; }
  BELAY_HD static void put_b(shared_type& to, std::size_t k, std::size_t j, bf16 x) noexcept { to.b[k][j] = x; }

  /// Sets the lane's sums to zero; `multiply` adds the products of the tiles in `from` to them, and `each_sum` visits
  /// them through the shared memory.
  BELAY_HD static void clear(unsigned lane, lane_type& own) noexcept {
    for (auto& row : own.sum)
      for (Fragment& sum : row) sum.clear(lane);
  }
  BELAY_HD static void multiply(const shared_type& from, unsigned lane, lane_type& own) noexcept {
    for (std::size_t k = 0; k < depth; k += side)
      for (std::size_t i = 0; i < each_way; ++i)
        for (std::size_t j = 0; j < each_way; ++j)
          own.sum[i][j].add(lane, &from.a[first_row(lane) + i * side][k], depth + 8,
                            &from.b[k][first_column(lane) + j * side], columns + 8);
  }
  template <kernel::block Block, class Visit>
  BELAY_HD static void each_sum(Block& block, const Visit& visit) {
    block.phase([&](unsigned lane, lane_type& own) {
      for (std::size_t i = 0; i < each_way; ++i)
        for (std::size_t j = 0; j < each_way; ++j)
          own.sum[i][j].store(lane, &block.shared().sums[first_row(lane) + i * side][first_column(lane) + j * side],
                              columns + 8);
    });
    block.phase([&](unsigned lane, lane_type&) {
      for (std::size_t i = lane; i < rows * columns; i += lanes)
        visit(i / columns, i % columns, block.shared().sums[i / columns][i % columns]);
    });
  }

 private:
  [[nodiscard]] BELAY_HD static constexpr std::size_t first_row(unsigned lane) noexcept {
    return lane / 64 * (each_way * side);
  }
  [[nodiscard]] BELAY_HD static constexpr std::size_t first_column(unsigned lane) noexcept {
    return lane / 32 % 2 * (each_way * side);
  }
};

/// One tile of a b, whose first element is (row, column) of the product: write(i, j, sum) of what lies within. Lanes
/// that follow each other read along the rows of memory.
template <class Tiles, kernel::block Block, class A, class B, class Write>
BELAY_HD void multiply_tile(Block& block, operand<const A> a, operand<const B> b, std::size_t row, std::size_t column,
                            const Write& write) {
  using element = typename Tiles::element;
  const std::size_t height = a.height(), width = b.width(), length = a.width();
  block.phase([](unsigned lane, auto& own) { Tiles::clear(lane, own); });
  for (std::size_t k = 0; k < length; k += Tiles::depth) {
    block.phase([&](unsigned lane, auto&) {
      for (std::size_t at = lane; at < Tiles::rows * Tiles::depth; at += Tiles::lanes) {
        const bool along = a.as == reading::as_is;
        const std::size_t i = along ? at / Tiles::depth : at % Tiles::rows;
        const std::size_t d = along ? at % Tiles::depth : at / Tiles::rows;
        const bool within = row + i < height && k + d < length;
        Tiles::put_a(block.shared(), i, d,
                     within ? static_cast<element>(element_at(a, row + i, k + d)) : static_cast<element>(0.0F));
      }
      for (std::size_t at = lane; at < Tiles::columns * Tiles::depth; at += Tiles::lanes) {
        const bool along = b.as == reading::as_is;
        const std::size_t j = along ? at % Tiles::columns : at / Tiles::depth;
        const std::size_t d = along ? at / Tiles::columns : at % Tiles::depth;
        const bool within = column + j < width && k + d < length;
        Tiles::put_b(block.shared(), d, j,
                     within ? static_cast<element>(element_at(b, k + d, column + j)) : static_cast<element>(0.0F));
      }
    });
    block.phase([&](unsigned lane, auto& own) { Tiles::multiply(block.shared(), lane, own); });
  }
  Tiles::each_sum(block, [&](std::size_t i, std::size_t j, auto sum) {
    if (row + i < height && column + j < width) write(row + i, column + j, sum);
  });
}

/// to = alpha sum + beta to, whose old value is not read where beta is 0.
template <class C>
struct scaled_sum {
  /// Writes c(i, j) = alpha sum + beta c(i, j).
  operand<C> c;
  compute_type_t<C> alpha;
  compute_type_t<C> beta;
  BELAY_HD void operator()(std::size_t i, std::size_t j, compute_type_t<C> sum) const noexcept {
    C& to = c.row(i)[j];
    to = static_cast<C>(beta == 0 ? alpha * sum : beta * kernel::widened(to) + alpha * sum);
  }
};

/// Rows of an expert. Of ends that are none, and of those behind them, there are none.
struct expert_rows {
  /// The expert, its first row, how many rows it has, and whether there is one.
  std::size_t expert = 0;
  std::size_t first = 0;
  std::size_t count = 0;
  bool found = false;
};

/// The rows of `expert`.
template <std::integral Index>
[[nodiscard]] BELAY_HD expert_rows rows_of_expert(view<const Index, 1> ends, std::size_t rows, std::size_t expert) {
  std::size_t first = 0;
  for (std::size_t e = 0; e <= expert; ++e) {
    const auto end = static_cast<std::size_t>(ends[e]);
    if (end < first || end > rows) return {};
    if (e == expert) return {e, first, end - first, true};
    first = end;
  }
  return {};
}
/// Those of tile `tile`, counted through all experts, each of whose tiles but the last has `tile_rows`; `first` is the
/// first of the tile, `count` how many the expert has from there on.
template <std::integral Index>
[[nodiscard]] BELAY_HD expert_rows rows_of_tile(view<const Index, 1> ends, std::size_t rows, std::size_t tile,
                                                std::size_t tile_rows) {
  std::size_t first = 0;
  for (std::size_t e = 0; e < ends.size(); ++e) {
    const auto end = static_cast<std::size_t>(ends[e]);
    if (end < first || end > rows) return {};
    const std::size_t tiles = tiles_of(end - first, tile_rows);
    if (tile < tiles) return {e, first + tile * tile_rows, end - first - tile * tile_rows, true};
    tile -= tiles;
    first = end;
  }
  return {};
}

/// Rows of c from those of a and the matrix of their expert. Rows of no expert are left as they are. The first end that
/// is none is noted.
template <class Tiles, class C, class A, class B, std::integral Index>
struct grouped_rows {
  /// Lanes of one block.
  static constexpr unsigned lanes = Tiles::lanes;
  using shared_type = typename Tiles::shared_type;
  using lane_type = typename Tiles::lane_type;

  /// The product of each expert, and where a wrong end is noted.
  grouped_rows_call<C, A, B, Index> call;
  kernel::findings_note found;

  /// As many as any ends need: an expert's last tile may have one row.
  [[nodiscard]] BELAY_HD std::size_t blocks() const noexcept {
    return (call.a.rows / Tiles::rows + call.ends.size()) * tiles_of(call.c.columns, Tiles::columns);
  }

  /// Block `index` of the tiles of all experts' rows.
  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    if (index == 0) {
      block.phase([&](unsigned lane, auto&) {
        if (lane == 0) noted_ends<Index>{call.ends, call.a.rows, found}(0);
      });
    }
    const std::size_t across = tiles_of(call.c.columns, Tiles::columns);
    const expert_rows own = rows_of_tile(call.ends, call.a.rows, index / across, Tiles::rows);
    if (!own.found) return;
    const product_call<C, A, B> tiled = call.of(own.expert, own.first, own.count);
    multiply_tile<Tiles>(block, tiled.a, tiled.b, 0, index % across * Tiles::columns,
                         scaled_sum<C>{tiled.c, tiled.alpha, tiled.beta});
  }
};

/// Matrix e of c from the rows of expert e, of a, which is read transposed, and of b.
template <class Tiles, class C, class A, class B, std::integral Index>
struct grouped_stack {
  /// Lanes of one block.
  static constexpr unsigned lanes = Tiles::lanes;
  using shared_type = typename Tiles::shared_type;
  using lane_type = typename Tiles::lane_type;

  /// The product of each expert, and where a wrong end is noted.
  grouped_stack_call<C, A, B, Index> call;
  kernel::findings_note found;

  /// How many blocks compute all matrices of the stack.
  [[nodiscard]] BELAY_HD std::size_t blocks() const noexcept { return call.ends.size() * tiles_each(); }

  /// Block `index` of the tiles of all matrices.
  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    if (index == 0) {
      block.phase([&](unsigned lane, auto&) {
        if (lane == 0) noted_ends<Index>{call.ends, call.a.rows, found}(0);
      });
    }
    const expert_rows own = rows_of_expert(call.ends, call.a.rows, index / tiles_each());
    if (!own.found) return;
    const std::size_t across = tiles_of(call.c.columns, Tiles::columns), tile = index % tiles_each();
    const product_call<C, A, B> tiled = call.of(own.expert, own.first, own.count);
    multiply_tile<Tiles>(block, tiled.a, tiled.b, tile / across * Tiles::rows, tile % across * Tiles::columns,
                         scaled_sum<C>{tiled.c, tiled.alpha, tiled.beta});
  }

 private:
  [[nodiscard]] BELAY_HD std::size_t tiles_each() const noexcept {
    return tiles_of(call.c.rows, Tiles::rows) * tiles_of(call.c.columns, Tiles::columns);
  }
};

}  // namespace belay::inline BELAY_ABI::cuda
