// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Matrix products on the host without a BLAS: both operands are packed into small buffers on the stack, so that all
// readings share one loop, and multiplied by a tile that fits the registers.
//
//   belay::kernel::blocked_products::product<float>(c, a, belay::transposed(b), 1, 0);  // c = a b^T
#pragma once

#include <cstddef>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/operand.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// Sizes of the blocks of a product: a tile of c fills the vector registers of the machine that it is compiled for.
struct product_blocks {
#if defined(__AVX512F__)
  static constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX__)
  static constexpr std::size_t vector_bytes = 32;
#else
  static constexpr std::size_t vector_bytes = 16;
#endif
  static constexpr std::size_t tile_rows = vector_bytes == 64 ? 12 : 6;
  static constexpr std::size_t rows = 72;
  static constexpr std::size_t columns = 128;
  static constexpr std::size_t depth = 128;
};

/// c = alpha a b + beta c in blocks.
template <class T>
class blocked_product {
 public:
  static void run(operand<T> c, operand<const T> a, operand<const T> b, T alpha, T beta) noexcept {
    if (a.width() == 0) scale_by(c, beta);
    alignas(64) T packed_a[block::rows * block::depth];
    alignas(64) T packed_b[block::depth * block::columns];
    for (std::size_t column = 0; column < c.columns; column += block::columns) {
      const std::size_t columns = least(block::columns, c.columns - column);
      for (std::size_t k = 0; k < a.width(); k += block::depth) {
        const std::size_t part = least(block::depth, a.width() - k);
        pack(packed_b, b, k, part, column, columns, tile_columns);
        for (std::size_t row = 0; row < c.rows; row += block::rows) {
          const std::size_t rows = least(block::rows, c.rows - row);
          pack(packed_a, transposed(a), k, part, row, rows, block::tile_rows);
          multiply(c.row_range(row, rows).column_range(column, columns), packed_a, packed_b, part, alpha,
                   k == 0 ? beta : T(1));
        }
      }
    }
  }

 private:
  using block = product_blocks;
  static constexpr std::size_t lanes = block::vector_bytes / sizeof(T);
  static constexpr std::size_t tile_columns = 2 * lanes;
  static_assert(block::rows % block::tile_rows == 0 && block::columns % tile_columns == 0);

  // Compilers leave a loop over a tile in memory; of a vector type they keep it in registers.
  typedef T vector __attribute__((vector_size(block::vector_bytes)));

  struct beside_old {
    const T* sums;
    T* c;
    T alpha;
    T beta;
    BELAY_HD constexpr void operator()(std::size_t j) const noexcept { c[j] = c[j] * beta + sums[j] * alpha; }
  };

  [[nodiscard]] static constexpr std::size_t least(std::size_t a, std::size_t b) noexcept { return a < b ? a : b; }

  static void scale_by(operand<T> c, T beta) noexcept {
    for (std::size_t i = 0; i < c.rows; ++i) {
      if (beta == T(0))
        for_each_index(c.columns, fill<T>{c.row(i), T(0)});
      else
        for_each_index(c.columns, kernel::scale<T>{beta, c.row(i)});
    }
  }

  // Depth x width of `source`, as panels of `panel` columns with the depth running slowest inside one; the last panel
  // is filled up with zeros.
  static void pack(T* to, operand<const T> source, std::size_t k, std::size_t depth, std::size_t first,
                   std::size_t width, std::size_t panel) noexcept {
    for (std::size_t j = 0; j < width; j += panel, to += panel * depth) {
      const std::size_t count = least(panel, width - j);
      if (count < panel) for_each_index(panel * depth, fill<T>{to, T(0)});
      if (source.as == reading::as_is) {
        for (std::size_t d = 0; d < depth; ++d)
          for_each_index(count, copy<T>{source.row(k + d) + first + j, to + d * panel});
      } else {
        for (std::size_t i = 0; i < count; ++i) {
          const T* from = source.row(first + j + i) + k;
          for (std::size_t d = 0; d < depth; ++d) to[d * panel + i] = from[d];
        }
      }
    }
  }

  static void multiply(operand<T> c, const T* a, const T* b, std::size_t depth, T alpha, T beta) noexcept {
    for (std::size_t j = 0; j < c.columns; j += tile_columns) {
      for (std::size_t i = 0; i < c.rows; i += block::tile_rows) {
        alignas(64) T tile[block::tile_rows * tile_columns];
        multiply_tile(tile, a + i * depth, b + j * depth, depth);
        const std::size_t rows = least(block::tile_rows, c.rows - i);
        const std::size_t columns = least(tile_columns, c.columns - j);
        for (std::size_t r = 0; r < rows; ++r) {
          T* const row = c.row(i + r) + j;
          const T* const sums = tile + r * tile_columns;
          if (beta == T(0))
            for_each_index(columns, multiple<T>{alpha, sums, row});
          else
            for_each_index(columns, beside_old{sums, row, alpha, beta});
        }
      }
    }
  }

  [[nodiscard]] static vector load(const T* from) noexcept {
    vector values;
    __builtin_memcpy(&values, from, sizeof values);
    return values;
  }

  static void multiply_tile(T* tile, const T* a, const T* b, std::size_t depth) noexcept {
    vector sums[block::tile_rows][2] = {};
    for (std::size_t d = 0; d < depth; ++d, a += block::tile_rows, b += tile_columns) {
      const vector left = load(b);
      const vector right = load(b + lanes);
      for (std::size_t r = 0; r < block::tile_rows; ++r) {
        sums[r][0] += a[r] * left;
        sums[r][1] += a[r] * right;
      }
    }
    __builtin_memcpy(tile, sums, sizeof sums);
  }
};

/// The products of a kit that has no BLAS. A policy of one's own has the same function.
struct blocked_products {
  /// c = alpha a b + beta c. With beta 0 the old c is not read.
  template <class T>
  static void product(operand<T> c, operand<const T> a, operand<const T> b, T alpha, T beta) noexcept {
    blocked_product<T>::run(c, a, b, alpha, beta);
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
