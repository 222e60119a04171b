// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Matrix products on the host without a BLAS: both operands are packed into small buffers on the stack, so that all
// readings share one loop, and multiplied by a tile that fits the registers. Operands that are narrower than c are
// converted as they are packed.
//
//   belay::kernel::blocked_product<float>::run({c, a, belay::transposed(b)});  // c = a b^T
//
// And products whose operands differ in type, such as bf16 by bf16 into float or into bf16. They are summed in float
// over the whole depth and rounded once. Tiles of a narrow c, and panels of what the products cannot read, lie in
// memory that is given (`mixed_panels`), or on the stack of the thread that computes: `mixed_tile::bytes`, whatever the
// shapes.
//
//   belay::kernel::mixed_product({}, belay::product_call<belay::bf16>{c, a, belay::transposed(b)});
//
// A program with a BLAS names its functions, and they serve all products: `belay::host_products`.
#pragma once

#include <cstddef>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"

namespace belay::inline BELAY_ABI {

/// The functions that multiply matrices on the host, of `floats` and of `doubles`. They are called with no empty
/// matrix, from any thread. Without a function the library's blocked loop multiplies, which also reads operands that
/// are narrower than c; a function gets those as panels of floats. All ranks name the same functions, or sums differ in
/// their last bits.
///
///   belay::launch(world, body, {.products = {my_sgemm, my_dgemm}});
struct host_products {
  template <class T>
  using function = void(const product_call<T>& call);

  function<float>* floats = nullptr;
  function<double>* doubles = nullptr;
};

}  // namespace belay::inline BELAY_ABI

namespace belay::inline BELAY_ABI::kernel {

/// Sizes of the blocks of a product: a tile of c fills the vector registers of the machine that it is compiled for.
struct product_blocks {
#if defined(__AVX512F__)
  static constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX__)
  static constexpr std::size_t vector_bytes = 32;
#else
  /// Bytes of a vector, rows of a tile in registers, and rows, columns and depth of a block in caches.
  static constexpr std::size_t vector_bytes = 16;
#endif
  static constexpr std::size_t tile_rows = vector_bytes == 64 ? 12 : 6;
  static constexpr std::size_t rows = 144;
  static constexpr std::size_t columns = 256;
  static constexpr std::size_t depth = 128;
};

/// A product in blocks.
template <real T, stored_real A = T, stored_real B = T>
class blocked_product {
 public:
  /// Multiplies what `call` says.
  [[gnu::hot]] static void run(const product_call<T, A, B>& call) noexcept {
    const auto& [c, a, b, alpha, beta] = call;
    if (a.width() == 0) scale_by(c, beta);
    alignas(64) T packed_a[block::rows * block::depth];
    alignas(64) T packed_b[block::depth * block::columns];
    for (std::size_t column = 0; column < c.columns; column += block::columns) {
      const std::size_t columns = least(block::columns, c.columns - column);
      for (std::size_t k = 0; k < a.width(); k += block::depth) {
        const std::size_t part = least(block::depth, a.width() - k);
        pack<tile_columns>(packed_b, b, k, part, column, columns);
        for (std::size_t row = 0; row < c.rows; row += block::rows) {
          const std::size_t rows = least(block::rows, c.rows - row);
          pack<block::tile_rows>(packed_a, transposed(a), k, part, row, rows);
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
  static constexpr std::size_t row_step = block::tile_rows / 3;  // tiles are as high, or two thirds, or a third
  static_assert(block::rows % block::tile_rows == 0 && block::columns % tile_columns == 0);

  // Compilers leave a loop over a tile in memory; of a vector type they keep it in registers.
  typedef T vector __attribute__((vector_size(block::vector_bytes)));
  typedef T quad __attribute__((vector_size(4 * sizeof(T))));

  [[nodiscard]] static constexpr std::size_t least(std::size_t a, std::size_t b) noexcept { return a < b ? a : b; }

  static void scale_by(operand<T> c, T beta) noexcept {
    for (std::size_t i = 0; i < c.rows; ++i) {
      if (beta == T(0))
        for_each_index(c.columns, fill<T>{c.row(i), T(0)});
      else
        for_each_index(c.columns, kernel::scale<T>{beta, c.row(i)});
    }
  }

  // Depth x width of `source`, as panels of `Panel` columns with the depth running slowest inside one; the last panel
  // is filled up with zeros.
  template <std::size_t Panel, class Source>
  static void pack(T* to, operand<const Source> source, std::size_t k, std::size_t depth, std::size_t first,
                   std::size_t width) noexcept {
    for (std::size_t j = 0; j < width; j += Panel, to += Panel * depth) {
      const std::size_t count = least(Panel, width - j);
      if (count < Panel) for_each_index(Panel * depth, fill<T>{to, T(0)});
      if (source.as == reading::transposed) {
        pack_transposed<Panel>(to, source.row(first + j) + k, source.stride, count, depth);
      } else if (count == Panel) {
        for (std::size_t d = 0; d < depth; ++d) convert<Panel>(to + d * Panel, source.row(k + d) + first + j);
      } else {
        for (std::size_t d = 0; d < depth; ++d)
          for_each_index(count, copy<Source, T>{source.row(k + d) + first + j, to + d * Panel});
      }
    }
  }

  // A constant number of elements, so that they stay in registers.
  template <std::size_t Count, class Source>
  static void convert(T* to, const Source* from) noexcept {
    if constexpr (std::is_same_v<Source, T>)
      __builtin_memcpy(to, from, Count * sizeof(T));
    else
      for (std::size_t i = 0; i < Count; ++i) to[i] = static_cast<T>(from[i]);
  }

  // A panel of which column i is row i of `from`: four rows at a time as squares, what is left number by number.
  template <std::size_t Panel, class Source>
  static void pack_transposed(T* to, const Source* from, std::size_t stride, std::size_t count,
                              std::size_t depth) noexcept {
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4) {
      const Source* const rows = from + i * stride;
      std::size_t d = 0;
      for (; d + 4 <= depth; d += 4) transpose_square<Panel>(to + d * Panel + i, rows + d, stride);
      for (; d < depth; ++d)
        for (std::size_t r = 0; r < 4; ++r) to[d * Panel + i + r] = static_cast<T>(rows[r * stride + d]);
    }
    for (; i < count; ++i)
      for (std::size_t d = 0; d < depth; ++d) to[d * Panel + i] = static_cast<T>(from[i * stride + d]);
  }

  template <std::size_t Panel, class Source>
  static void transpose_square(T* to, const Source* from, std::size_t stride) noexcept {
    quad in[4];
    for (std::size_t r = 0; r < 4; ++r) convert<4>(reinterpret_cast<T*>(&in[r]), from + r * stride);
    quad pairs[4];  // columns 0 and 1 of rows 0 and 1, then of rows 2 and 3; columns 2 and 3 alike
    for (std::size_t p = 0; p < 2; ++p) {
      pairs[p] = __builtin_shufflevector(in[2 * p], in[2 * p + 1], 0, 4, 1, 5);
      pairs[2 + p] = __builtin_shufflevector(in[2 * p], in[2 * p + 1], 2, 6, 3, 7);
    }
    for (std::size_t p = 0; p < 2; ++p, to += 2 * Panel) {
      const quad even = __builtin_shufflevector(pairs[2 * p], pairs[2 * p + 1], 0, 1, 4, 5);
      const quad odd = __builtin_shufflevector(pairs[2 * p], pairs[2 * p + 1], 2, 3, 6, 7);
      __builtin_memcpy(to, &even, sizeof even);
      __builtin_memcpy(to + Panel, &odd, sizeof odd);
    }
  }

  static void multiply(operand<T> c, const T* a, const T* b, std::size_t depth, T alpha, T beta) noexcept {
    for (std::size_t j = 0; j < c.columns; j += tile_columns) {
      const std::size_t columns = least(tile_columns, c.columns - j);
      for (std::size_t i = 0; i < c.rows; i += block::tile_rows) {
        const std::size_t rows = least(block::tile_rows, c.rows - i);
        const T* const left = a + i * depth;
        const T* const right = b + j * depth;
        if (columns <= lanes)
          multiply_part<1>(c.row_range(i, rows).column_range(j, columns), left, right, depth, alpha, beta);
        else
          multiply_part<2>(c.row_range(i, rows).column_range(j, columns), left, right, depth, alpha, beta);
      }
    }
  }

  // A part of c that a tile of `Vectors` vectors a row covers, by the lowest such tile.
  template <std::size_t Vectors>
  static void multiply_part(operand<T> c, const T* a, const T* b, std::size_t depth, T alpha, T beta) noexcept {
    if (c.rows <= row_step)
      multiply_tile<row_step, Vectors>(c, a, b, depth, alpha, beta);
    else if (c.rows <= 2 * row_step)
      multiply_tile<2 * row_step, Vectors>(c, a, b, depth, alpha, beta);
    else
      multiply_tile<3 * row_step, Vectors>(c, a, b, depth, alpha, beta);
  }

  template <std::size_t Rows, std::size_t Vectors>
  static void multiply_tile(operand<T> c, const T* a, const T* b, std::size_t depth, T alpha, T beta) noexcept {
    vector sums[Rows][Vectors] = {};
    for (std::size_t d = 0; d < depth; ++d, a += block::tile_rows, b += tile_columns) {
      vector right[Vectors];
      for (std::size_t v = 0; v < Vectors; ++v) right[v] = load(b + v * lanes);
      for (std::size_t r = 0; r < Rows; ++r)
        for (std::size_t v = 0; v < Vectors; ++v) sums[r][v] += a[r] * right[v];
    }
    for (std::size_t r = 0; r < least(Rows, c.rows); ++r) {
      if (c.columns == Vectors * lanes) {
        write_row<Vectors>(c.row(r), sums[r], alpha, beta);
      } else {  // beside the columns of c, by the same arithmetic
        alignas(64) T row[Vectors * lanes] = {};
        if (beta != T(0)) for_each_index(c.columns, copy<T>{c.row(r), row});
        write_row<Vectors>(row, sums[r], alpha, beta);
        for_each_index(c.columns, copy<T>{row, c.row(r)});
      }
    }
  }

  template <std::size_t Vectors>
  static void write_row(T* to, const vector (&sums)[Vectors], T alpha, T beta) noexcept {
    for (std::size_t v = 0; v < Vectors; ++v, to += lanes)
      store(to, beta == T(0) ? alpha * sums[v] : beta * load(to) + alpha * sums[v]);
  }

  [[nodiscard]] static vector load(const T* from) noexcept {
    vector values;
    __builtin_memcpy(&values, from, sizeof values);
    return values;
  }
  static void store(T* to, vector values) noexcept { __builtin_memcpy(to, &values, sizeof values); }
};

/// A product of floats or doubles, by `by`. No operand is empty.
template <real T>
void product(const host_products& by, const product_call<T>& call) {
  if constexpr (std::is_same_v<T, float>) {
    if (by.floats != nullptr) return by.floats(call);
  } else if constexpr (std::is_same_v<T, double>) {
    if (by.doubles != nullptr) return by.doubles(call);
  }
  blocked_product<T>::run(call);
}

/// Operands that a product takes: all are computed with in one type.
template <class C, class A, class B>
concept product_operands = stored_real<C> && std::is_same_v<compute_type_t<C>, compute_type_t<A>> &&
    std::is_same_v<compute_type_t<C>, compute_type_t<B>>;

/// Operands that a mixed product takes: they differ in type, or are all narrower than what is computed with.
template <class C, class A, class B>
concept mixed_operands = product_operands<C, A, B> && !(real<C> && std::is_same_v<C, A> && std::is_same_v<C, B>);

/// Elements of a tile of c, and of the panels beside it.
struct mixed_tile {
  /// Rows, columns and depth of a tile that is computed as float.
  static constexpr std::size_t rows = 384;
  static constexpr std::size_t columns = 256;
  static constexpr std::size_t depth = 256;
  /// At most, beside what the products take themselves.
  static constexpr std::size_t bytes = (rows * columns + rows * depth + depth * columns) * sizeof(float);
};

/// Memory that one product writes to beside c. Not initialised.
struct mixed_panels {
  /// A tile of sums, and panels of both operands.
  alignas(64) float sums[mixed_tile::rows * mixed_tile::columns];
  alignas(64) float left[mixed_tile::rows * mixed_tile::depth];
  alignas(64) float right[mixed_tile::depth * mixed_tile::columns];
};
static_assert(sizeof(mixed_panels) == mixed_tile::bytes);

/// `count` rows of a matrix as it is read, or columns.
template <class T>
[[nodiscard]] constexpr operand<T> rows_as_read(operand<T> x, std::size_t first, std::size_t count) noexcept {
  if (x.as == reading::as_is) return x.row_range(first, count);
  return transposed(operand<T>(x.data, x.rows, x.columns, x.stride).column_range(first, count));
}
template <class T>
[[nodiscard]] constexpr operand<T> columns_as_read(operand<T> x, std::size_t first, std::size_t count) noexcept {
  return transposed(rows_as_read(transposed(x), first, count));
}

/// The matrix `x` with elements of `Number`, in `memory`.
template <class Number, class T>
[[nodiscard]] operand<const Number> converted(operand<const T> x, Number* memory) noexcept {
  for (std::size_t row = 0; row < x.rows; ++row)
    for_each_index(x.columns, copy<T, Number>{x.row(row), memory + row * x.columns});
  return {memory, x.rows, x.columns, x.columns, x.as};
}

/// A product into floats: by the blocked loop, or panel by panel by what multiplies floats.
template <stored_real A, stored_real B>
void wide_product(const host_products& by, const product_call<float, A, B>& call, mixed_panels& panels) {
  if constexpr (std::is_same_v<A, float> && std::is_same_v<B, float>) {
    return product<float>(by, call);
  } else {
    if (by.floats == nullptr) return blocked_product<float, A, B>::run(call);
    const auto& [c, a, b, alpha, beta] = call;
    const auto least = [](std::size_t x, std::size_t y) { return x < y ? x : y; };
    for (std::size_t column = 0; column < c.columns; column += mixed_tile::columns) {
      const std::size_t columns = least(mixed_tile::columns, c.columns - column);
      for (std::size_t k = 0; k < a.width(); k += mixed_tile::depth) {
        const std::size_t depth = least(mixed_tile::depth, a.width() - k);
        const auto of_b = converted(columns_as_read(rows_as_read(b, k, depth), column, columns), panels.right);
        for (std::size_t row = 0; row < c.rows; row += mixed_tile::rows) {
          const std::size_t rows = least(mixed_tile::rows, c.rows - row);
          const auto of_a = converted(columns_as_read(rows_as_read(a, row, rows), k, depth), panels.left);
          by.floats({c.row_range(row, rows).column_range(column, columns), of_a, of_b, alpha, k == 0 ? beta : 1.0F});
        }
      }
    }
  }
}

/// A product of which no operand is empty. `panels` is its own until it returns.
template <class C, class A, class B>
requires mixed_operands<C, A, B>
void mixed_product(const host_products& by, const product_call<C, A, B>& call, mixed_panels& panels) {
  using number = compute_type_t<C>;
  static_assert(std::is_same_v<number, float>, "what is narrower than a number is computed with as float");
  if constexpr (real<C>) {
    wide_product<A, B>(by, call, panels);
  } else {
    const auto& [c, a, b, alpha, beta] = call;
    number* const sums = panels.sums;
    for (std::size_t column = 0; column < c.columns; column += mixed_tile::columns) {
      const std::size_t columns = c.columns - column < mixed_tile::columns ? c.columns - column : mixed_tile::columns;
      for (std::size_t row = 0; row < c.rows; row += mixed_tile::rows) {
        const std::size_t rows = c.rows - row < mixed_tile::rows ? c.rows - row : mixed_tile::rows;
        wide_product<A, B>(
            by,
            {{sums, rows, columns, columns}, rows_as_read(a, row, rows), columns_as_read(b, column, columns), alpha},
            panels);
        const operand<C> out = c.row_range(row, rows).column_range(column, columns);
        for (std::size_t i = 0; i < rows; ++i) {
          number* const from = sums + i * columns;
          if (beta != number(0)) for_each_index(columns, axpy<number, C>{beta, out.row(i), from});
          for_each_index(columns, copy<number, C>{from, out.row(i)});
        }
      }
    }
  }
}
/// A product of which no operand is empty, with panels on the stack.
template <class C, class A, class B>
requires mixed_operands<C, A, B>
void mixed_product(const host_products& by, const product_call<C, A, B>& call) {
  mixed_panels panels;
  mixed_product(by, call, panels);
}

}  // namespace belay::inline BELAY_ABI::kernel
