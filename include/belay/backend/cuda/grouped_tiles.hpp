// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Products of experts as kernels of blocks, one tile of a result a block. The ends of the experts' rows are read by the
// device alone: there are as many blocks as any ends could need, and each finds its expert. An element is summed over
// ascending depth by one lane, so that its bits depend on no other.
//
//   belay::cuda::queue_grouped<belay::cuda::tensor_warp>(by, call, found);  // by.blocks(kernel)
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "belay/backend/cuda/element_products.hpp"
#include "belay/backend/cuda/tensor_tiles.hpp"
#include "belay/backend/cuda/tensor_warp.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/view.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Fused multiply and add of numbers: 4 x 4 sums a lane. A block's shared memory has a `tile` of `shared_type`.
template <class Number>
struct scalar_tiles {
  /// Lanes of a block, and the tile that it computes: rows, columns, the depth of one pass, and what one lane has of
  /// it.
  static constexpr unsigned lanes = 256;
  static constexpr std::size_t rows = 64, columns = 64, depth = 16, own_rows = 4, own_columns = 4;
  /// How it reads and writes.
  static constexpr tile_access access = tile_access::single;

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

  /// One tile of a b, whose first element is (row, column) of the product: write(i, j, sum) of what lies within. Lanes
  /// that follow each other read along the rows of memory.
  template <kernel::block Block, class A, class B, class Write>
  BELAY_HD static void multiply(Block& block, const operand<const A>& a, const operand<const B>& b, std::size_t row,
                                std::size_t column, const Write& write) {
    const std::size_t height = a.height(), width = b.width(), length = a.width();
    block.phase([](unsigned, auto& own) {
      for (auto& line : own.sum)
        for (Number& sum : line) sum = 0;
    });
    for (std::size_t k = 0; k < length; k += depth) {
      block.phase([&](unsigned lane, auto&) {
        shared_type& tile = block.shared().tile;
        for (std::size_t at = lane; at < rows * depth; at += lanes) {
          const bool along = a.as == reading::as_is;
          const std::size_t i = along ? at / depth : at % rows, d = along ? at % depth : at / rows;
          const bool within = row + i < height && k + d < length;
          tile.a[d][i] = within ? static_cast<Number>(element_at(a, row + i, k + d)) : Number(0);
        }
        for (std::size_t at = lane; at < columns * depth; at += lanes) {
          const bool along = b.as == reading::as_is;
          const std::size_t j = along ? at % columns : at / depth, d = along ? at / columns : at % depth;
          const bool within = column + j < width && k + d < length;
          tile.b[d][j] = within ? static_cast<Number>(element_at(b, k + d, column + j)) : Number(0);
        }
      });
      block.phase([&](unsigned lane, auto& own) {
        const shared_type& tile = block.shared().tile;
        for (std::size_t d = 0; d < depth; ++d)
          for (std::size_t i = 0; i < own_rows; ++i)
            for (std::size_t j = 0; j < own_columns; ++j)
              own.sum[i][j] += tile.a[d][first_row(lane) + i] * tile.b[d][first_column(lane) + j];
      });
    }
    block.phase([&](unsigned lane, auto& own) {
      for (std::size_t i = 0; i < own_rows; ++i)
        for (std::size_t j = 0; j < own_columns; ++j) {
          const std::size_t at_row = row + first_row(lane) + i, at_column = column + first_column(lane) + j;
          if (at_row < height && at_column < width) write(at_row, at_column, own.sum[i][j]);
        }
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

/// to = alpha sum + beta to, whose old value is not read where beta is 0.
template <class C>
struct scaled_sum {
  /// Writes c(i, j) = alpha sum + beta c(i, j).
  operand<C> c;
  compute_type_t<C> alpha;
  compute_type_t<C> beta;
  BELAY_HD void operator()(std::size_t i, std::size_t j, compute_type_t<C> sum) const noexcept {
    C& to = c.row(i)[j];
    to = of(to, sum);
  }
  /// Writes c(i, j) and c(i, j + 1), which lie aligned, by one access.
  BELAY_HD void pair(std::size_t i, std::size_t j, compute_type_t<C> first, compute_type_t<C> second) const noexcept {
    C* const to = c.row(i) + j;
    kernel::pack_of<C, 2> all = {};
    if (beta != 0) all = kernel::load_pack<2>(to, 0);
    kernel::store_pack<2>({of(all.of[0], first), of(all.of[1], second)}, to, 0);
  }

 private:
  [[nodiscard]] BELAY_HD C of(const C& old, compute_type_t<C> sum) const noexcept {
    return static_cast<C>(beta == 0 ? alpha * sum : beta * kernel::widened(old) + alpha * sum);
  }
};

/// Rows of an expert, as a block finds them.
struct expert_rows {
  /// The expert, its first row, how many rows it has, which of its tiles the block has, and whether there is one.
  std::size_t expert;
  std::size_t first;
  std::size_t count;
  std::size_t tile;
  bool found;
};

/// Which expert has tile number `tile` of all experts, of which one with `count` rows has tiles_of_rows(count). Lanes
/// look at parts of the experts side by side. Of ends that are none, and of those behind them, there are no tiles.
class expert_search {
 public:
  /// Parts, one a lane.
  static constexpr unsigned parts = 16;
  /// Memory that the lanes of a block share.
  struct shared_type {
    /// Tiles of each part, whether one of its ends is none, and what was found.
    std::size_t tiles[parts];
    bool wrong[parts];
    expert_rows found;
  };

  /// For all lanes alike. A block's shared memory has a `search` of `shared_type`.
  template <kernel::block Block, std::integral Index, class TilesOfRows>
  [[nodiscard]] BELAY_HD static expert_rows find(Block& block, view<const Index, 1> ends, std::size_t rows,
                                                 std::size_t tile, const TilesOfRows& tiles_of_rows) {
    block.phase([&](unsigned lane, auto&) {
      if (lane >= parts) return;
      shared_type& all = block.shared().search;
      if (lane == 0) all.found = {};
      all.tiles[lane] = 0;
      all.wrong[lane] = !walk(ends, rows, lane, [&](std::size_t, std::size_t, std::size_t count) {
        all.tiles[lane] += tiles_of_rows(count);
      });
    });
    block.phase([&](unsigned lane, auto&) {
      if (lane >= parts) return;
      shared_type& all = block.shared().search;
      std::size_t before = 0;
      for (unsigned part = 0; part < lane; ++part) {
        if (all.wrong[part]) return;
        before += all.tiles[part];
      }
      if (tile < before || tile - before >= all.tiles[lane]) return;
      std::size_t left = tile - before;
      static_cast<void>(walk(ends, rows, lane, [&](std::size_t expert, std::size_t first, std::size_t count) {
        const std::size_t tiles = tiles_of_rows(count);
        if (left < tiles && !all.found.found) all.found = {expert, first, count, left, true};
        left -= left < tiles ? left : tiles;
      }));
    });
    return block.shared().search.found;
  }

 private:
  // visit(expert, first row, rows) of each expert of a part, up to the first end that is none; whether all are.
  template <std::integral Index, class Visit>
  BELAY_HD static bool walk(view<const Index, 1> ends, std::size_t rows, unsigned part, const Visit& visit) {
    const std::size_t each = tiles_of(ends.size(), parts), from = part * each;
    const std::size_t to = from + each < ends.size() ? from + each : ends.size();
    for (std::size_t e = from; e < to; ++e) {
      const std::size_t first = e == 0 ? 0 : static_cast<std::size_t>(ends[e - 1]);
      const auto end = static_cast<std::size_t>(ends[e]);
      if (end < first || end > rows) return false;
      visit(e, first, end - first);
    }
    return true;
  }
};

/// The first block notes the first end that is none.
template <kernel::block Block, class Call>
BELAY_HD void note_ends(Block& block, std::size_t index, const Call& call, const kernel::findings_note& found) {
  using index_type = std::remove_cvref_t<decltype(call.ends[0])>;
  if (index > 0) return;
  block.phase([&](unsigned lane, auto&) {
    if (lane == 0) noted_ends<index_type>{call.ends, call.a.rows, found}(0);
  });
}

/// Memory that the lanes of a block of experts' products share.
template <class Tiles>
struct grouped_memory {
  /// That of the tiles, and of the search for an expert.
  typename Tiles::shared_type tile;
  expert_search::shared_type search;
};

/// Rows of c from those of a and the matrix of their expert. Rows of no expert are left as they are. The first end that
/// is none is noted.
template <class Tiles, class C, class A, class B, std::integral Index>
struct grouped_rows {
  /// Lanes of one block, and how they read and write.
  static constexpr unsigned lanes = Tiles::lanes;
  static constexpr tile_access access = Tiles::access;
  using shared_type = grouped_memory<Tiles>;
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
    note_ends(block, index, call, found);
    const std::size_t across = tiles_of(call.c.columns, Tiles::columns);
    const expert_rows own = expert_search::find(block, call.ends, call.a.rows, index / across,
                                                [](std::size_t count) { return tiles_of(count, Tiles::rows); });
    if (!own.found) return;
    const product_call<C, A, B> tiled = call.of(own.expert, own.first, own.count);
    Tiles::multiply(block, tiled.a, tiled.b, own.tile * Tiles::rows, index % across * Tiles::columns,
                    scaled_sum<C>{tiled.c, tiled.alpha, tiled.beta});
  }
};

/// Matrix e of c from the rows of expert e, of a, which is read transposed, and of b.
template <class Tiles, class C, class A, class B, std::integral Index>
struct grouped_stack {
  /// Lanes of one block, and how they read and write.
  static constexpr unsigned lanes = Tiles::lanes;
  static constexpr tile_access access = Tiles::access;
  using shared_type = grouped_memory<Tiles>;
  using lane_type = typename Tiles::lane_type;

  /// The product of each expert, and where a wrong end is noted.
  grouped_stack_call<C, A, B, Index> call;
  kernel::findings_note found;

  /// How many blocks compute all matrices of the stack.
  [[nodiscard]] BELAY_HD std::size_t blocks() const noexcept { return call.ends.size() * tiles_each(); }

  /// Block `index` of the tiles of all matrices.
  template <kernel::block Block>
  BELAY_HD void operator()(Block& block, std::size_t index) const {
    note_ends(block, index, call, found);
    const expert_rows own =
        expert_search::find(block, call.ends, call.a.rows, index, [each = tiles_each()](std::size_t) { return each; });
    if (!own.found) return;
    const std::size_t across = tiles_of(call.c.columns, Tiles::columns);
    const product_call<C, A, B> tiled = call.of(own.expert, own.first, own.count);
    Tiles::multiply(block, tiled.a, tiled.b, own.tile / across * Tiles::rows, own.tile % across * Tiles::columns,
                    scaled_sum<C>{tiled.c, tiled.alpha, tiled.beta});
  }

 private:
  [[nodiscard]] BELAY_HD std::size_t tiles_each() const noexcept {
    return tiles_of(call.c.rows, Tiles::rows) * tiles_of(call.c.columns, Tiles::columns);
  }
};

/// Operands whose products tensor cores sum in float.
template <class C, class A, class B>
concept tensor_operands = std::same_as<A, bf16> && std::same_as<B, bf16> && std::same_as < compute_type_t<C>,
float > ;

/// Queues a product of experts: by tensor cores where both operands are bf16, else by numbers; false where `by` could
/// not. One kernel whether or not a graph records it.
template <tensor_unit Unit, class By, class C, class A, class B, class Index>
bool queue_grouped(By& by, const grouped_rows_call<C, A, B, Index>& call, const kernel::findings_note& found) {
  const auto queue = [&]<class Tiles>() { return by.blocks(grouped_rows<Tiles, C, A, B, Index>{call, found}); };
  if constexpr (tensor_operands<C, A, B>) {
    const auto queue_by = [&]<tile_access Access>() {
      constexpr reading as_is = reading::as_is;
      return call.b.as == as_is ? queue.template operator()<tensor_tiles<Unit, as_is, as_is, Access>>()
                                : queue.template operator()<tensor_tiles<Unit, as_is, reading::transposed, Access>>();
    };
    return rows_are_packed(call.c, call.a, call.b) ? queue_by.template operator()<tile_access::packed>()
                                                   : queue_by.template operator()<tile_access::single>();
  } else {
    return queue.template operator()<scalar_tiles<compute_type_t<C>>>();
  }
}
template <tensor_unit Unit, class By, class C, class A, class B, class Index>
bool queue_grouped(By& by, const grouped_stack_call<C, A, B, Index>& call, const kernel::findings_note& found) {
  const auto queue = [&]<class Tiles>() { return by.blocks(grouped_stack<Tiles, C, A, B, Index>{call, found}); };
  if constexpr (tensor_operands<C, A, B>) {
    const auto queue_by = [&]<tile_access Access>() {
      return queue.template operator()<tensor_tiles<Unit, reading::transposed, reading::as_is, Access>>();
    };
    return rows_are_packed(call.c, call.a, call.b) ? queue_by.template operator()<tile_access::packed>()
                                                   : queue_by.template operator()<tile_access::single>();
  } else {
    return queue.template operator()<scalar_tiles<compute_type_t<C>>>();
  }
}

}  // namespace belay::inline BELAY_ABI::cuda
