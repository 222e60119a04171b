// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A product of operands of different types, by what multiplies floats: panels of the operands are converted into memory
// that is given, and of a narrower result the sums lie there too, until they are rounded once.
//
//   belay::cuda::converted_product(by, call, room);  // by.each(n, kernel), by.product(a product_call of floats)
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/product.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Element `index` of a dense copy of a block, as float.
template <class T>
struct converted_block {
  /// Writes element `index` of an operand of a narrower type, as it is read, to `to` as float.
  operand<const T> from;
  float* to;
  BELAY_HD constexpr void operator()(std::size_t index) const noexcept {
    to[index] = kernel::widened(from.row(index / from.columns)[index % from.columns]);
  }
};

/// Element `index` of c from that of dense sums: c = sum + beta c.
template <class C>
struct rounded_sums {
  /// Rounds `beta` times an element of `c`, and the sum beside it, to the type of `c`.
  const float* from;
  operand<C> c;
  float beta;
  BELAY_HD constexpr void operator()(std::size_t index) const noexcept {
    C& to = c.row(index / c.columns)[index % c.columns];
    to = static_cast<C>(beta == 0 ? from[index] : beta * kernel::widened(to) + from[index]);
  }
};

/// The sides of panels: three of them are `room`.
[[nodiscard]] constexpr std::size_t panel_side(std::size_t room) noexcept {
  std::size_t side = 0;
  while (3 * (side + 16) * (side + 16) * sizeof(float) <= room) side += 16;
  return side;
}

/// A queue of kernels and of products of floats, which says of each whether it could queue it.
template <class By>
concept product_queue = requires(By& by, std::size_t count, kernel::fill<float> f, const product_call<float>& call) {
  { by.each(count, f) } -> std::same_as<bool>;
  { by.product(call) } -> std::same_as<bool>;
};

/// Queues the product of `call`, of which no operand is empty. Ends where `by` could not queue something. The room is
/// the product's own until it has run, and holds 3 KiB at least.
template <product_queue By, class C, class A, class B>
bool converted_product(By& by, const product_call<C, A, B>& call, std::span<std::byte> room) {
  const auto& [c, a, b, alpha, beta] = call;
  const std::size_t side = panel_side(room.size()), depth = a.width();
  auto* const sums = reinterpret_cast<float*>(room.data());
  float* const left = sums + side * side;
  float* const right = left + side * side;
  const auto part = [side](std::size_t all, std::size_t first) { return all - first < side ? all - first : side; };
  const auto as_floats = [&]<class T>(operand<const T> x, float* to, operand<const float>& out) {
    if constexpr (kernel::real<T>) {
      out = x;
      return true;
    } else {
      out = {to, x.rows, x.columns, x.columns, x.as};
      return by.each(x.rows * x.columns, converted_block<T>{x, to});
    }
  };
  for (std::size_t column = 0; column < c.columns; column += side) {
    const std::size_t columns = part(c.columns, column);
    for (std::size_t row = 0; row < c.rows; row += side) {
      const std::size_t rows = part(c.rows, row);
      const operand<C> out = c.row_range(row, rows).column_range(column, columns);
      operand<float> to{sums, rows, columns, columns};
      if constexpr (kernel::real<C>) to = out;
      for (std::size_t k = 0; k < depth; k += side) {
        operand<const float> x, y;
        const auto of_a = kernel::columns_as_read(kernel::rows_as_read(a, row, rows), k, part(depth, k));
        const auto of_b = kernel::columns_as_read(kernel::rows_as_read(b, k, part(depth, k)), column, columns);
        const float kept = k > 0 ? 1.0F : kernel::real<C> ? beta : 0.0F;
        if (!as_floats(of_a, left, x) || !as_floats(of_b, right, y) || !by.product({to, x, y, alpha, kept}))
          return false;
      }
      if constexpr (!kernel::real<C>)
        if (!by.each(rows * columns, rounded_sums<C>{sums, out, beta})) return false;
    }
  }
  return true;
}

}  // namespace belay::inline BELAY_ABI::cuda
