// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Matrix products, by a BLAS where there is one. An operand is a row-major block of a larger matrix, read as it is or
// transposed, so that layers can use one head's columns or one expert's rows without copying. Without a BLAS a blocked
// loop does the same: both operands are packed into small stack buffers and multiplied by a register tile.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "belay/core/view.hpp"
#include "model/arithmetic.hpp"

#ifndef BELAY_HAS_CBLAS
#define BELAY_HAS_CBLAS 0
#endif

#if BELAY_HAS_CBLAS
#include <cblas.h>
#endif

namespace model {

using belay::extents;
using belay::view;

/// A row-major block; `rows` and `columns` are those of the memory, before `read_as`.
template <class T>
struct matrix {
  enum class reading { as_is, transposed };

  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t stride = 0;  // elements from one row to the next
  reading read_as = reading::as_is;

  matrix() = default;
  matrix(T* first, std::size_t row_count, std::size_t column_count, std::size_t row_stride)
      : data(first), rows(row_count), columns(column_count), stride(row_stride) {}
  matrix(T* first, std::size_t row_count, std::size_t column_count)
      : matrix(first, row_count, column_count, column_count) {}
  template <class U>
  requires std::is_convertible_v<U*, T*>
  matrix(view<U, 2> whole) : matrix(whole.data(), whole.extent(0), whole.extent(1)) {}
  template <class U>
  requires(std::is_same_v<const U, T> && !std::is_const_v<U>)
  matrix(const matrix<U>& other) : matrix(other.data, other.rows, other.columns, other.stride) {
    read_as = static_cast<reading>(other.read_as);
  }

  [[nodiscard]] matrix transposed() const {
    matrix result = *this;
    result.read_as = read_as == reading::as_is ? reading::transposed : reading::as_is;
    return result;
  }
  [[nodiscard]] matrix row_range(std::size_t first, std::size_t count) const {
    return {data + first * stride, count, columns, stride};
  }
  [[nodiscard]] matrix column_range(std::size_t first, std::size_t count) const {
    return {data + first, rows, count, stride};
  }
  [[nodiscard]] T* row(std::size_t index) const { return data + index * stride; }
  [[nodiscard]] std::size_t height() const { return read_as == reading::as_is ? rows : columns; }
  [[nodiscard]] std::size_t width() const { return read_as == reading::as_is ? columns : rows; }
};

/// The product of a call that has no BLAS. Packs both operands, so that all four readings share one tile.
template <class T>
class blocked_product {
 public:
  static void run(matrix<T> c, matrix<const T> a, matrix<const T> b, T alpha, T beta) {
    if (a.width() == 0) scale(c, beta);
    alignas(64) std::array<T, block_rows * block_depth> packed_a;
    alignas(64) std::array<T, block_depth * block_columns> packed_b;
    const std::size_t depth = a.width();
    for (std::size_t column = 0; column < c.columns; column += block_columns) {
      const std::size_t columns = std::min(block_columns, c.columns - column);
      for (std::size_t k = 0; k < depth; k += block_depth) {
        const std::size_t part = std::min(block_depth, depth - k);
        pack(packed_b.data(), b, k, part, column, columns, tile_columns);
        for (std::size_t row = 0; row < c.rows; row += block_rows) {
          const std::size_t rows = std::min(block_rows, c.rows - row);
          pack(packed_a.data(), a.transposed(), k, part, row, rows, tile_rows);
          multiply(c.row_range(row, rows).column_range(column, columns), packed_a.data(), packed_b.data(), part, alpha,
                   k == 0 ? beta : T(1));
        }
      }
    }
  }

 private:
  // A tile and its operands fill the machine's registers: 32 of 64 bytes, or 16 of 32 or of 16 bytes.
  static constexpr std::size_t tile_rows = vector_bytes == 64 ? 12 : 6;
  static constexpr std::size_t tile_columns = 2 * lane_count<T>;
  static constexpr std::size_t block_rows = 72;
  static constexpr std::size_t block_columns = 128;
  static constexpr std::size_t block_depth = 128;
  static_assert(block_rows % tile_rows == 0 && block_columns % tile_columns == 0);

  static void scale(matrix<T> c, T beta) {
    if (beta == T(1)) return;
    for (std::size_t i = 0; i < c.rows; ++i) {
      T* row = c.row(i);
      if (beta == T(0)) {
        std::fill_n(row, c.columns, T(0));
      } else {
        for (std::size_t j = 0; j < c.columns; ++j) row[j] *= beta;
      }
    }
  }

  /// Depth x width of `source`, as panels of `panel` columns with the depth running slowest inside one; the last
  /// panel is filled up with zeros.
  static void pack(T* to, matrix<const T> source, std::size_t k, std::size_t depth, std::size_t first,
                   std::size_t width, std::size_t panel) {
    for (std::size_t j = 0; j < width; j += panel, to += panel * depth) {
      const std::size_t count = std::min(panel, width - j);
      if (count < panel) std::fill_n(to, panel * depth, T(0));
      if (source.read_as == matrix<const T>::reading::as_is) {
        for (std::size_t d = 0; d < depth; ++d) std::copy_n(source.row(k + d) + first + j, count, to + d * panel);
      } else {
        for (std::size_t i = 0; i < count; ++i) {
          const T* from = source.row(first + j + i) + k;
          for (std::size_t d = 0; d < depth; ++d) to[d * panel + i] = from[d];
        }
      }
    }
  }

  static void multiply(matrix<T> c, const T* a, const T* b, std::size_t depth, T alpha, T beta) {
    for (std::size_t j = 0; j < c.columns; j += tile_columns) {
      for (std::size_t i = 0; i < c.rows; i += tile_rows) {
        alignas(64) std::array<T, tile_rows * tile_columns> tile;
        multiply_tile(tile.data(), a + i * depth, b + j * depth, depth);
        const std::size_t rows = std::min(tile_rows, c.rows - i);
        const std::size_t columns = std::min(tile_columns, c.columns - j);
        for (std::size_t r = 0; r < rows; ++r) {
          T* row = c.row(i + r) + j;
          const T* sums = tile.data() + r * tile_columns;
          if (beta == T(0)) {
            for_lanes<T>(columns, [=](auto at) { at.store(row, at.load(sums) * alpha); });
          } else {
            for_lanes<T>(columns, [=](auto at) { at.store(row, at.load(row) * beta + at.load(sums) * alpha); });
          }
        }
      }
    }
  }

  static void multiply_tile(T* tile, const T* a, const T* b, std::size_t depth) {
    lanes<T> sums[tile_rows][2] = {};
    for (std::size_t d = 0; d < depth; ++d, a += tile_rows, b += tile_columns) {
      const lanes<T> left = whole_cursor<T>{0}.load(b);
      const lanes<T> right = whole_cursor<T>{lane_count<T>}.load(b);
      for (std::size_t r = 0; r < tile_rows; ++r) {
        sums[r][0] += a[r] * left;
        sums[r][1] += a[r] * right;
      }
    }
    std::memcpy(tile, sums, sizeof sums);
  }
};

#if BELAY_HAS_CBLAS
inline void blas_product(matrix<float> c, matrix<const float> a, matrix<const float> b, float alpha, float beta) {
  const auto op = [](const matrix<const float>& m) {
    return m.read_as == matrix<const float>::reading::as_is ? CblasNoTrans : CblasTrans;
  };
  cblas_sgemm(CblasRowMajor, op(a), op(b), static_cast<int>(c.rows), static_cast<int>(c.columns),
              static_cast<int>(a.width()), alpha, a.data, static_cast<int>(a.stride), b.data,
              static_cast<int>(b.stride), beta, c.data, static_cast<int>(c.stride));
}
inline void blas_product(matrix<double> c, matrix<const double> a, matrix<const double> b, double alpha, double beta) {
  const auto op = [](const matrix<const double>& m) {
    return m.read_as == matrix<const double>::reading::as_is ? CblasNoTrans : CblasTrans;
  };
  cblas_dgemm(CblasRowMajor, op(a), op(b), static_cast<int>(c.rows), static_cast<int>(c.columns),
              static_cast<int>(a.width()), alpha, a.data, static_cast<int>(a.stride), b.data,
              static_cast<int>(b.stride), beta, c.data, static_cast<int>(c.stride));
}
#endif

/// c = alpha * a * b + beta * c, with `a` and `b` as they are read. With beta 0 the old `c` is not read.
template <class T>
void product(matrix<T> c, std::type_identity_t<matrix<const T>> a, std::type_identity_t<matrix<const T>> b,
             std::type_identity_t<T> alpha = T(1), std::type_identity_t<T> beta = T(0)) {
  if (c.rows == 0 || c.columns == 0 || (a.width() == 0 && beta == T(1))) return;
#if BELAY_HAS_CBLAS
  blas_product(c, a, b, alpha, beta);
#else
  blocked_product<T>::run(c, a, b, alpha, beta);
#endif
}

/// c = alpha * a * b + c: what a weight gradient does.
template <class T>
void add_product(matrix<T> c, std::type_identity_t<matrix<const T>> a, std::type_identity_t<matrix<const T>> b,
                 std::type_identity_t<T> alpha = T(1)) {
  product(c, a, b, alpha, T(1));
}

/// "openblas", "cblas" or "blocked loop": for the first line a trainer prints.
[[nodiscard]] inline const char* product_backend() {
#if BELAY_HAS_CBLAS && defined(OPENBLAS_CONST)
  return "openblas";
#elif BELAY_HAS_CBLAS
  return "cblas";
#else
  return "blocked loop";
#endif
}

/// Makes the BLAS single-threaded, because a rank is one thread. Called once, before ranks start.
inline void one_thread_per_product() {
#if BELAY_HAS_CBLAS && defined(OPENBLAS_CONST)
  openblas_set_num_threads(1);
#endif
}

}  // namespace model
