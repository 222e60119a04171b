// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Products as kernels of one element: what no library multiplies, operands of different types and those of experts.
// They are right and slow: each thread sums one row by one column, in `compute_type_t<C>`, and rounds once.
//
//   belay::cuda::element_product<float, belay::bf16, belay::bf16> all{{c, a, b}};
//   belay::kernel::for_each_index(c.rows * c.columns, all);
#pragma once

#include <concepts>
#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/view.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/math.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Element (i, j) of a matrix as it is read.
template <class T>
[[nodiscard]] BELAY_HD constexpr T element_at(const operand<const T>& x, std::size_t i, std::size_t j) noexcept {
  return x.as == reading::as_is ? x.row(i)[j] : x.row(j)[i];
}

/// A product, one element an index, counted along the rows of c.
template <class C, class A, class B>
struct element_product {
  /// The product.
  product_call<C, A, B> call;

  /// One element of the result, counted row by row.
  BELAY_HD constexpr void operator()(std::size_t index) const noexcept {
    using number = compute_type_t<C>;
    const std::size_t i = index / call.c.columns, j = index % call.c.columns;
    number sum = 0;
    for (std::size_t k = 0; k < call.a.width(); ++k)
      sum += kernel::widened(element_at(call.a, i, k)) * kernel::widened(element_at(call.b, k, j));
    C& to = call.c.row(i)[j];
    to = static_cast<C>(call.beta == number(0) ? call.alpha * sum : call.beta * kernel::widened(to) + call.alpha * sum);
  }
};

/// Notes the first end that is none, as the kit of the host does. One index.
template <std::integral Index>
struct noted_ends {
  /// Ends of the experts' rows, the rows there are, and where a wrong end is noted.
  view<const Index, 1> ends;
  std::size_t rows;
  kernel::findings_note found;

  /// Notes the first end that is below the one before, or beyond the rows.
  BELAY_HD constexpr void operator()(std::size_t) const noexcept {
    std::size_t first = 0;
    for (std::size_t e = 0; e < ends.size(); ++e) {
      const auto end = static_cast<std::size_t>(ends[e]);
      if (end < first || end > rows) return found.rows_outside(e, end, first, rows);
      first = end;
    }
  }
};

/// A product per expert into rows, one element an index. Rows of no expert are left as they are.
template <class C, class A, class B, std::integral Index>
struct grouped_element {
  /// The product.
  grouped_rows_call<C, A, B, Index> call;

  /// One element of the result, counted row by row.
  BELAY_HD constexpr void operator()(std::size_t index) const noexcept {
    const auto& [c, a, b, ends, alpha, beta] = call;
    for (std::size_t e = 0; e < ends.size(); ++e)
      if (index / c.columns < static_cast<std::size_t>(ends[e]))
        return element_product<C, A, B>{{c, a, b[e], alpha, beta}}(index);
  }
};

/// A product per expert into a stack, one element an index.
template <class C, class A, class B, std::integral Index>
struct stacked_element {
  /// The product.
  grouped_stack_call<C, A, B, Index> call;

  /// One element of the stack of results, counted matrix by matrix and row by row.
  BELAY_HD constexpr void operator()(std::size_t index) const noexcept {
    const std::size_t elements = call.c.rows * call.c.columns, e = index / elements;
    const std::size_t first = e == 0 ? 0 : within(call.ends[e - 1]), end = within(call.ends[e]);
    element_product<C, A, B>{call.of(e, first, end < first ? 0 : end - first)}(index % elements);
  }

 private:
  [[nodiscard]] BELAY_HD constexpr std::size_t within(Index end) const noexcept {
    const auto row = static_cast<std::size_t>(end);
    return row < call.a.rows ? row : call.a.rows;
  }
};

}  // namespace belay::inline BELAY_ABI::cuda
