// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Products whose operands differ in type, such as bf16 by bf16 into float or into bf16. They are summed in float over
// the whole depth and rounded once. Tiles of a narrow c, and panels of what the products cannot read, lie in memory
// that is given (`mixed_panels`), or on the stack of the thread that computes: `mixed_tile::bytes`, whatever the
// shapes.
//
//   using products = belay::kernel::blocked_products;
//   belay::kernel::mixed_product<products>(c, a, belay::transposed(b), 1, 0);  // bf16 c = a b^T
#pragma once

#include <cstddef>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// Operands that a mixed product takes: all are computed with in one type.
template <class C, class A, class B>
concept mixed_operands =
    stored_real<C> && std::is_same_v<compute_type_t<C>, compute_type_t<A>> &&
    std::is_same_v<compute_type_t<C>, compute_type_t<B>> && !(real<C> && std::is_same_v<C, A> && std::is_same_v<C, B>);

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

/// Whether a policy of products reads narrower operands itself.
template <class Products, class Number, class A, class B>
concept reads_operands = requires(operand<Number> c, operand<const A> a, operand<const B> b, Number scalar) {
  Products::product(c, a, b, scalar, scalar);
};

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

/// c = alpha a b + beta c for a c of floats: by the products themselves, or panel by panel.
template <class Products, stored_real A, stored_real B>
void wide_product(operand<float> c, operand<const A> a, operand<const B> b, float alpha, float beta,
                  mixed_panels& panels) {
  if constexpr (reads_operands<Products, float, A, B>) {
    Products::product(c, a, b, alpha, beta);
  } else {
    const auto least = [](std::size_t x, std::size_t y) { return x < y ? x : y; };
    for (std::size_t column = 0; column < c.columns; column += mixed_tile::columns) {
      const std::size_t columns = least(mixed_tile::columns, c.columns - column);
      for (std::size_t k = 0; k < a.width(); k += mixed_tile::depth) {
        const std::size_t depth = least(mixed_tile::depth, a.width() - k);
        const auto of_b = converted(columns_as_read(rows_as_read(b, k, depth), column, columns), panels.right);
        for (std::size_t row = 0; row < c.rows; row += mixed_tile::rows) {
          const std::size_t rows = least(mixed_tile::rows, c.rows - row);
          const auto of_a = converted(columns_as_read(rows_as_read(a, row, rows), k, depth), panels.left);
          Products::product(c.row_range(row, rows).column_range(column, columns), of_a, of_b, alpha,
                            k == 0 ? beta : 1.0F);
        }
      }
    }
  }
}

/// c = alpha a b + beta c. With beta 0 the old c is not read. No operand is empty. `panels` is the product's own until
/// it returns.
template <class Products, class C, class A, class B>
  requires mixed_operands<C, A, B>
void mixed_product(operand<C> c, operand<const A> a, operand<const B> b, compute_type_t<C> alpha,
                   compute_type_t<C> beta, mixed_panels& panels) {
  using number = compute_type_t<C>;
  static_assert(std::is_same_v<number, float>, "what is narrower than a number is computed with as float");
  if constexpr (real<C>) {
    wide_product<Products, A, B>(c, a, b, alpha, beta, panels);
  } else {
    number* const sums = panels.sums;
    for (std::size_t column = 0; column < c.columns; column += mixed_tile::columns) {
      const std::size_t columns = c.columns - column < mixed_tile::columns ? c.columns - column : mixed_tile::columns;
      for (std::size_t row = 0; row < c.rows; row += mixed_tile::rows) {
        const std::size_t rows = c.rows - row < mixed_tile::rows ? c.rows - row : mixed_tile::rows;
        wide_product<Products, A, B>({sums, rows, columns, columns}, rows_as_read(a, row, rows),
                                     columns_as_read(b, column, columns), alpha, 0, panels);
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
/// c = alpha a b + beta c, with panels on the stack. With beta 0 the old c is not read. No operand is empty.
template <class Products, class C, class A, class B>
  requires mixed_operands<C, A, B>
void mixed_product(operand<C> c, operand<const A> a, operand<const B> b, compute_type_t<C> alpha,
                   compute_type_t<C> beta) {
  mixed_panels panels;
  mixed_product<Products>(c, a, b, alpha, beta, panels);
}

}  // namespace belay::inline BELAY_ABI::kernel
