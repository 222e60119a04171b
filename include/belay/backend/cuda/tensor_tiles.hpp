// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tiles of products of bf16 by tensor cores: 128 x 128 sums a block, in float, over steps of 32 of the depth: one is
// multiplied while two are copied to the memory of the block. An element is summed over
// ascending depth by one lane's registers, so that its bits depend on no other.
//
//   using tiles = belay::cuda::tensor_tiles<tensor_warp, reading::as_is, reading::transposed, tile_access::packed>;
//   tiles::multiply(block, a, b, row, column, write);  // write.pair(i, j, sum, the sum beside it)
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/backend/cuda/tensor_warp.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Tiles of `each` that hold `count`.
[[nodiscard]] BELAY_HD constexpr std::size_t tiles_of(std::size_t count, std::size_t each) noexcept {
  return (count + each - 1) / each;
}

/// How a tile's elements are read and its sums written: 16 bytes at a time by copies that nobody waits for, and pairs
/// of sums, where rows are packed; or one element at a time.
enum class tile_access : std::uint8_t { packed, single };

/// Whether rows of a matrix, or of a stack of them, begin at multiples of 16 bytes and are as long, so that they can be
/// moved by 16 bytes.
template <class T>
[[nodiscard]] bool rows_are_packed(const operand<T>& x) noexcept {
  constexpr std::size_t pack = kernel::pack_size<T>;
  return x.columns % pack == 0 && x.stride % pack == 0 && kernel::are_packs<pack>(x.data);
}
template <class T>
[[nodiscard]] bool rows_are_packed(const operand_stack<T>& x) noexcept {
  return rows_are_packed(operand<T>{x.data, x.rows, x.columns, x.columns});
}
/// Whether those of all of these are.
template <class... Each>
requires(sizeof...(Each) > 1) [[nodiscard]] bool rows_are_packed(const Each&... each) noexcept {
  return (rows_are_packed(each) && ...);
}

/// 128 rows of an operand by 32 of its depth, in memory of a block. They lie as in the operand: along the depth, or
/// along the rows where it is transposed. Chunks of 16 bytes change places within a row, so that the eight which eight
/// lanes read at once lie in different banks.
template <reading As>
struct tensor_panel {
  /// Elements of both ways, of a chunk, and of a row as it lies.
  static constexpr unsigned rows = 128, depth = 32, chunk = 8;
  static constexpr unsigned length = As == reading::as_is ? depth : rows;
  static constexpr unsigned chunks_a_row = length / chunk;

  /// The elements.
  alignas(128) bf16 elements[rows * depth];

  /// The place of chunk `index` of row `line` as it lies.
  [[nodiscard]] BELAY_HD static constexpr unsigned place_of(unsigned line, unsigned index) noexcept {
    return line * length + (index ^ (As == reading::as_is ? line / 2 % 4 : line % 8)) * chunk;
  }

  /// The 16 x 16 elements from (row, depth) on of the panel at `elements`: as a left operand of Unit::multiply, or as
  /// two right ones, (to[0], to[1]) and (to[2], to[3]).
  template <tensor_unit Unit>
  BELAY_HD static void load_left(bf16_pair (&to)[4], typename Unit::block_address elements, unsigned lane, unsigned row,
                                 unsigned first_depth) noexcept {
    const unsigned matrix = lane / 8;
    load<Unit>(to, elements, lane, row + matrix % 2 * 8, first_depth + matrix / 2 * 8);
  }
  template <tensor_unit Unit>
  BELAY_HD static void load_right(bf16_pair (&to)[4], typename Unit::block_address elements, unsigned lane,
                                  unsigned row, unsigned first_depth) noexcept {
    const unsigned matrix = lane / 8;
    load<Unit>(to, elements, lane, row + matrix / 2 * 8, first_depth + matrix % 2 * 8);
  }

 private:
  // The matrix that the lane gives an address of begins at (row, depth).
  template <tensor_unit Unit>
  BELAY_HD static void load(bf16_pair (&to)[4], typename Unit::block_address elements, unsigned lane, unsigned row,
                            unsigned first_depth) noexcept {
    if constexpr (As == reading::as_is)
      Unit::load(to, elements + place_of(row + lane % 8, first_depth / chunk));
    else
      Unit::load_transposed(to, elements + place_of(first_depth + lane % 8, row / chunk));
  }
};

/// The chunks that one of `Lanes` lanes copies of an operand's panels, one panel after the other along the depth.
template <tensor_unit Unit, reading As, tile_access Access, unsigned Lanes>
class panel_copies {
 public:
  /// From the panel on whose first element is (row, 0) of `of`, as it is read.
  BELAY_HD void begin(const operand<const bf16>& of, std::size_t row, unsigned lane) noexcept {
    const unsigned line = lane / panel::chunks_a_row, index = lane % panel::chunks_a_row;
    place_ = panel::place_of(line, index);
    const std::size_t first_line = along ? row + line : line, column = along ? index * chunk : row + index * chunk;
    from_ = of.data + first_line * of.stride + column;
    depth_ = along ? index * chunk : line;
    count_ = column < of.columns ? static_cast<unsigned>(least(chunk, of.columns - column)) : 0;
    for (unsigned c = 0; c < chunks; ++c) {
      const std::size_t beyond = along ? of.columns : of.rows - least(of.rows, c * lines_apart);
      const bool within = along ? first_line + c * lines_apart < of.rows : count_ > 0;
      end_[c] = within ? static_cast<unsigned>(beyond) : 0;
    }
  }

  /// Starts to copy, or copies, the lane's chunks of the next panel to that at `memory`. What is beyond the operand
  /// is zeros.
  BELAY_HD void next(bf16* memory, std::size_t stride) noexcept {
    const typename Unit::block_address elements = memory;
    for (unsigned c = 0; c < chunks; ++c) {
      const bf16* const from = from_ + c * lines_apart * stride;
      const unsigned to = place_ + c * lines_apart * panel::length;
      if constexpr (Access == tile_access::packed) {
        Unit::copy(elements + to, from, depth_ < end_[c] ? chunk : 0);
      } else {
        const unsigned count = depth_ >= end_[c] ? 0 : along ? end_[c] - depth_ : count_;
        for (unsigned e = 0; e < chunk; ++e) memory[to + e] = e < count ? from[e] : bf16(0.0F);
      }
    }
    from_ += along ? panel::depth : panel::depth * stride;
    depth_ += panel::depth;
  }

 private:
  using panel = tensor_panel<As>;
  static constexpr bool along = As == reading::as_is;
  static constexpr unsigned chunk = panel::chunk, chunks = panel::rows * panel::depth / chunk / Lanes;
  static constexpr unsigned lines_apart = Lanes / panel::chunks_a_row;
  static_assert(lines_apart % 8 == 0);  // so that a lane's chunks change places alike

  [[nodiscard]] BELAY_HD static constexpr std::size_t least(std::size_t a, std::size_t b) noexcept {
    return a < b ? a : b;
  }

  const bf16* from_;
  unsigned place_;
  unsigned depth_;
  unsigned count_;
  unsigned end_[chunks];  // of the depth; 0 where a chunk is beyond the rows
};

/// The tiles of products of operands that are read so. A block's shared memory has a `tile` of `shared_type`.
template <tensor_unit Unit, reading A, reading B, tile_access Access>
struct tensor_tiles {
  /// Lanes of a block, how they read and write, and the tile that its eight warps compute, each 64 x 32 of it.
  static constexpr unsigned lanes = 256;
  static constexpr tile_access access = Access;
  static constexpr unsigned rows = 128, columns = 128, depth = 32, stages = 3;
  static constexpr unsigned warp_rows = 64, warp_columns = 32, side = 16;

  /// Panels of some steps, of the right operand those of its transpose.
  struct shared_type {
    /// Panels of one step.
    struct step_panels {
      /// Of both operands.
      tensor_panel<A> a;
      tensor_panel<other_way(B)> b;
    } steps[stages];
  };
  /// The registers of one lane.
  struct lane_type {
    /// Its sums of the tile, and what it copies.
    float sums[warp_rows / side][warp_columns / 8][4];
    panel_copies<Unit, A, Access, lanes> a;
    panel_copies<Unit, other_way(B), Access, lanes> b;
  };

  /// One tile of a b, whose first element is (row, column) of the product: write.pair(i, j, sum, the next) of what lies
  /// within, or write(i, j, sum).
  template <kernel::block Block, class Write>
  BELAY_HD static void multiply(Block& block, const operand<const bf16>& a, const operand<const bf16>& b,
                                std::size_t row, std::size_t column, const Write& write) {
    auto& memory = block.shared().tile.steps;
    const unsigned steps = static_cast<unsigned>(tiles_of(a.width(), depth));
    const auto fetch = [&](auto& own, unsigned step, unsigned slot) {
      if (step < steps) {
        own.a.next(memory[slot].a.elements, a.stride);
        own.b.next(memory[slot].b.elements, b.stride);
      }
      Unit::close_group();
    };
    block.phase([&](unsigned lane, auto& own) {
      for (auto& line : own.sums)
        for (auto& sums : line)
          for (float& sum : sums) sum = 0;
      own.a.begin(a, row, lane);
      own.b.begin(transposed(b), column, lane);
      for (unsigned step = 0; step + 1 < stages; ++step) fetch(own, step, step);
      Unit::template wait_but<stages - 2>();
    });
    unsigned slot = 0, free = stages - 1;
    for (unsigned step = 0; step < steps; ++step) {
      block.phase([&](unsigned lane, auto& own) {
        fetch(own, step + stages - 1, free);  // where the step before lay
        add(memory[slot], lane, own);
        Unit::template wait_but<stages - 2>();
      });
      free = slot;
      slot = slot + 1 < stages ? slot + 1 : 0;
    }
    const std::size_t height = a.height(), width = b.width();
    block.phase([&](unsigned lane, auto& own) {
      kernel::run_pack<2 * (warp_rows / side)>([&](std::size_t i) {
        kernel::run_pack<warp_columns / 8>([&](std::size_t j) {
          const std::size_t at_row = row + first_row(lane) + i * 8 + lane % 32 / 4;
          const std::size_t at_column = column + first_column(lane) + j * 8 + lane % 4 * 2;
          const float first = own.sums[i / 2][j][i % 2 * 2], second = own.sums[i / 2][j][i % 2 * 2 + 1];
          if (at_row >= height || at_column >= width) return;
          if constexpr (Access == tile_access::packed) {
            write.pair(at_row, at_column, first, second);
          } else {
            write(at_row, at_column, first);
            if (at_column + 1 < width) write(at_row, at_column + 1, second);
          }
        });
      });
    });
  }

 private:
  [[nodiscard]] BELAY_HD static constexpr unsigned first_row(unsigned lane) noexcept { return lane / 128 * warp_rows; }
  [[nodiscard]] BELAY_HD static constexpr unsigned first_column(unsigned lane) noexcept {
    return lane / 32 % 4 * warp_columns;
  }

  template <class Panels>
  BELAY_HD static void add(Panels& from, unsigned lane, lane_type& own) noexcept {
    const typename Unit::block_address left = from.a.elements, right = from.b.elements;
    for (unsigned k = 0; k < depth; k += side) {
      bf16_pair b[warp_columns / side][4];
      for (unsigned j = 0; j < warp_columns / side; ++j)
        tensor_panel<other_way(B)>::template load_right<Unit>(b[j], right, lane % 32, first_column(lane) + j * side, k);
      for (unsigned i = 0; i < warp_rows / side; ++i) {
        bf16_pair a[4];
        tensor_panel<A>::template load_left<Unit>(a, left, lane % 32, first_row(lane) + i * side, k);
        for (unsigned j = 0; j < warp_columns / side; ++j) {
          Unit::multiply(own.sums[i][2 * j], a, b[j][0], b[j][1]);
          Unit::multiply(own.sums[i][2 * j + 1], a, b[j][2], b[j][3]);
        }
      }
    }
  }
};

}  // namespace belay::inline BELAY_ABI::cuda
