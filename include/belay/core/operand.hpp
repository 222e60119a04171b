// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Operands of matrix products and of attention. An operand is a row-major block of memory, read as it is or transposed,
// so that one head's columns or one expert's rows are multiplied without a copy. An operand stack is as many matrices
// of one shape, one behind the other. What a causal softmax attention of grouped heads is asked for is plain data, for
// kits that have one of their own.
//
//   const belay::operand<const float> whole = x;                    // of a view of two dimensions
//   const auto head = whole.column_range(first, head_size);         // one head of every row
//   frame.product(scores, head, belay::transposed(keys));
//   kit.attention(belay::attention_call<float>{sizes, queries, keys, values, context, log_sums});
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/view.hpp"

namespace belay::inline BELAY_ABI {

/// Whether a matrix is read as it lies or transposed; nothing is moved.
enum class reading : std::uint8_t { as_is, transposed };

/// The other one of the two.
[[nodiscard]] BELAY_HD constexpr reading other_way(reading as) noexcept {
  return as == reading::as_is ? reading::transposed : reading::as_is;
}

/// A row-major block. `rows` and `columns` are those of the memory, `height` and `width` those of the matrix as read.
template <class T>
struct operand {
  /// First element, rows and columns as they lie, and how they are read.
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t stride = 0;  // elements from one row to the next
  reading as = reading::as_is;

  constexpr operand() = default;
  /// A matrix with rows that far apart; a view; the same to read from.
  BELAY_HD constexpr operand(T* first, std::size_t row_count, std::size_t column_count, std::size_t row_stride,
                             reading how = reading::as_is) noexcept
      : data(first), rows(row_count), columns(column_count), stride(row_stride), as(how) {}
  template <class U>
  requires std::convertible_to<U*, T*> BELAY_HD constexpr operand(view<U, 2> whole) noexcept
      : operand(whole.data(), whole.extent(0), whole.extent(1), whole.extent(1)) {}
  template <class U>
  requires(std::same_as<const U, T> && !std::same_as<U, T>) BELAY_HD constexpr operand(const operand<U>& other) noexcept
      : operand(other.data, other.rows, other.columns, other.stride, other.as) {}

  /// A part of the memory, which is read as it is.
  [[nodiscard]] BELAY_HD constexpr operand row_range(std::size_t first, std::size_t count) const noexcept {
    return {data + first * stride, count, columns, stride};
  }
  [[nodiscard]] BELAY_HD constexpr operand column_range(std::size_t first, std::size_t count) const noexcept {
    return {data + first, rows, count, stride};
  }
  [[nodiscard]] BELAY_HD constexpr T* row(std::size_t index) const noexcept { return data + index * stride; }
  [[nodiscard]] BELAY_HD constexpr std::size_t height() const noexcept { return as == reading::as_is ? rows : columns; }
  [[nodiscard]] BELAY_HD constexpr std::size_t width() const noexcept { return as == reading::as_is ? columns : rows; }
};

/// `count` matrices of `rows` x `columns`, dense.
template <class T>
struct operand_stack {
  /// First element, matrices, rows and columns of each as they lie, and how they are read.
  T* data = nullptr;
  std::size_t count = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  reading as = reading::as_is;

  constexpr operand_stack() = default;
  /// Matrices one behind another; a view of three dimensions.
  BELAY_HD constexpr operand_stack(T* first, std::size_t matrices, std::size_t row_count, std::size_t column_count,
                                   reading how = reading::as_is) noexcept
      : data(first), count(matrices), rows(row_count), columns(column_count), as(how) {}
  template <class U>
  requires std::convertible_to<U*, T*> BELAY_HD constexpr operand_stack(view<U, 3> whole) noexcept
      : operand_stack(whole.data(), whole.extent(0), whole.extent(1), whole.extent(2)) {}
  /// The stack `other`, to read from.
  template <class U>
  requires(std::same_as<const U, T> && !std::same_as<U, T>)
      BELAY_HD constexpr operand_stack(const operand_stack<U>& other) noexcept
      : operand_stack(other.data, other.count, other.rows, other.columns, other.as) {}

  /// One matrix, and the rows and columns of each as they are read.
  [[nodiscard]] BELAY_HD constexpr operand<T> operator[](std::size_t index) const noexcept {
    return {data + index * rows * columns, rows, columns, columns, as};
  }
  [[nodiscard]] BELAY_HD constexpr std::size_t height() const noexcept { return as == reading::as_is ? rows : columns; }
  [[nodiscard]] BELAY_HD constexpr std::size_t width() const noexcept { return as == reading::as_is ? columns : rows; }
};

/// A thing whose shape is known at run time, such as a parameter's values: `as<2>()` is its view as a matrix.
template <class X>
concept shaped_at_run_time = requires(const X& x) {
  x.template as<2>().data();
  x.template as<3>().data();
};

/// A thing whose shape is known at run time, read transposed, as a matrix or as a stack: what it is used for decides.
template <shaped_at_run_time X>
struct transposed_values {
  /// The thing that is read transposed, as it lies.
  X values;
};

/// The memory of the argument, read with rows and columns exchanged.
template <class T>
[[nodiscard]] BELAY_HD constexpr operand<T> transposed(operand<T> matrix) noexcept {
  matrix.as = other_way(matrix.as);
  return matrix;
}
template <class T>
[[nodiscard]] BELAY_HD constexpr operand<T> transposed(view<T, 2> matrix) noexcept {
  return transposed(operand<T>(matrix));
}
template <class T>
[[nodiscard]] BELAY_HD constexpr operand_stack<T> transposed(operand_stack<T> stack) noexcept {
  stack.as = other_way(stack.as);
  return stack;
}
template <class T>
[[nodiscard]] BELAY_HD constexpr operand_stack<T> transposed(view<T, 3> stack) noexcept {
  return transposed(operand_stack<T>(stack));
}
template <shaped_at_run_time X>
[[nodiscard]] constexpr transposed_values<X> transposed(const X& values) noexcept {
  return {values};
}

/// The matrix that something is.
template <class T>
[[nodiscard]] BELAY_HD constexpr operand<T> operand_of(operand<T> matrix) noexcept {
  return matrix;
}
template <class T>
[[nodiscard]] BELAY_HD constexpr operand<T> operand_of(view<T, 2> matrix) noexcept {
  return matrix;
}
template <shaped_at_run_time X>
[[nodiscard]] constexpr auto operand_of(const X& values) {
  return operand_of(values.template as<2>());
}
template <class X>
[[nodiscard]] constexpr auto operand_of(const transposed_values<X>& read) {
  return transposed(read.values.template as<2>());
}

/// Matrices of one width as one matrix of all their rows, where these lie one behind the other, as `follows` of a
/// parameter's specification asks for. Where they do not, or have no memory, its data are null.
template <class First, class... Rest>
requires(sizeof...(Rest) > 0)
[[nodiscard]] constexpr auto joined_rows(const First& first, const Rest&... rest) {
  auto all = operand_of(first);
  bool joined = all.data != nullptr && all.as == reading::as_is && all.stride == all.columns;
  const auto add = [&](const auto& next) {
    joined = joined && next.data == all.data + all.rows * all.stride && next.as == all.as &&
             next.columns == all.columns && next.stride == all.stride;
    all.rows += next.rows;
  };
  (add(operand_of(rest)), ...);
  if (!joined) all.data = nullptr;
  return all;
}

/// The stack of matrices that something is.
template <class T>
[[nodiscard]] BELAY_HD constexpr operand_stack<T> stack_of(operand_stack<T> stack) noexcept {
  return stack;
}
template <class T>
[[nodiscard]] BELAY_HD constexpr operand_stack<T> stack_of(view<T, 3> stack) noexcept {
  return stack;
}
template <shaped_at_run_time X>
[[nodiscard]] constexpr auto stack_of(const X& values) {
  return stack_of(values.template as<3>());
}
template <class X>
[[nodiscard]] constexpr auto stack_of(const transposed_values<X>& read) {
  return transposed(read.values.template as<3>());
}

/// An operand that a product reads as one matrix, and one that it reads as a stack of them: a view, an operand, or one
/// of these transposed.
template <class X>
concept matrix_operand = requires(const X& x) {
  operand_of(x).stride;
};
template <class X>
concept matrix_stack = requires(const X& x) {
  stack_of(x).count;
};

/// Memory that nothing may have written yet: `values()` is the memory as it is, and `take_unwritten()` says, once, that
/// whoever asked writes all of it.
template <class X>
concept written_once_asked = requires(const X& x) {
  x.values();
  { x.take_unwritten() } -> std::same_as<bool>;
};

/// A target that a product adds to, where it would otherwise overwrite.
template <class X>
struct added_to {
  /// The target, which a product adds to.
  X target;
  /// For a kernel, which says by itself that it adds. A sum that is not written yet is zeroed first, which can fail.
  [[nodiscard]] constexpr auto* data() const requires requires { target.data(); }
  { return target.data(); }
  template <class T, std::size_t Rank>
  requires std::convertible_to<const X&, view<T, Rank>>
  constexpr operator view<T, Rank>() const { return target; }
};
template <class X>
[[nodiscard]] constexpr added_to<X> adding_to(const X& target) noexcept {
  return {target};
}

/// The memory that a product adds to, and what it keeps of it: 1, or 0 where nothing is there yet.
template <class X>
[[nodiscard]] constexpr decltype(auto) memory_of(const added_to<X>& total) {
  if constexpr (written_once_asked<X>)
    return total.target.values();
  else
    return (total.target);
}
template <class X>
[[nodiscard]] constexpr int share_kept(const added_to<X>& total) {
  if constexpr (written_once_asked<X>)
    return total.target.take_unwritten() ? 0 : 1;
  else
    return 1;
}

static_assert(std::is_trivially_copyable_v<operand<float>> && std::is_trivially_copyable_v<operand_stack<float>>);

/// The product c = alpha a b + beta c, whose old c is not read where beta is 0. It is summed in `compute_type_t<C>` and
/// rounded once.
template <class C, class A = C, class B = A>
struct product_call {
  /// The result, what is multiplied as it is read, [c.rows, depth] by [depth, c.columns], and the factors.
  operand<C> c;
  operand<const A> a;
  operand<const B> b;
  compute_type_t<C> alpha = 1;
  compute_type_t<C> beta = 0;
};

/// A product per expert: its rows of c are those of a, multiplied by b[e]. Expert e has the rows [ends[e - 1],
/// ends[e]); rows of no expert are left as they are.
template <class C, class A = C, class B = A, class Index = std::int32_t>
struct grouped_rows_call {
  /// The result, what is multiplied, where the rows of each expert end, and the factors.
  operand<C> c;
  operand<const A> a;
  operand_stack<const B> b;
  view<const Index, 1> ends;
  compute_type_t<C> alpha = 1;
  compute_type_t<C> beta = 0;

  /// The product of expert `e`, whose rows are `count` from `first` on.
  [[nodiscard]] BELAY_HD constexpr product_call<C, A, B> of(std::size_t e, std::size_t first,
                                                            std::size_t count) const noexcept {
    return {c.row_range(first, count), a.row_range(first, count), b[e], alpha, beta};
  }
};

/// A product per expert: c[e] is that of the expert's rows of a, which is read transposed, and of b. Expert e has the
/// rows [ends[e - 1], ends[e]).
template <class C, class A = C, class B = A, class Index = std::int32_t>
struct grouped_stack_call {
  /// The results, what is multiplied, where the rows of each expert end, and the factors.
  operand_stack<C> c;
  operand<const A> a;
  operand<const B> b;
  view<const Index, 1> ends;
  compute_type_t<C> alpha = 1;
  compute_type_t<C> beta = 0;

  /// The product of expert `e`, whose rows are `count` from `first` on.
  [[nodiscard]] BELAY_HD constexpr product_call<C, A, B> of(std::size_t e, std::size_t first,
                                                            std::size_t count) const noexcept {
    return {c[e], transposed(a.row_range(first, count)), b.row_range(first, count), alpha, beta};
  }
};

/// A product per expert, of rows or into a stack.
template <class G>
concept grouped_call = requires(const G& call, std::size_t e) {
  call.ends[e];
  call.of(e, e, e).c.rows;
};

/// The sizes of an attention: `heads` heads of queries share `kv_heads` heads of keys and values, in order. Rows are
/// tokens, sequences of `length` one behind the other; a head is `head_size` columns.
struct attention_sizes {
  std::size_t heads = 0;
  std::size_t kv_heads = 0;
  std::size_t head_size = 0;
  std::size_t length = 0;

  /// The factor that scores are multiplied by: 1 / sqrt(head_size).
  // The C library's function: <cmath> costs its reader more than this header.
  [[nodiscard]] double scale() const noexcept { return 1 / __builtin_sqrt(static_cast<double>(head_size)); }
};

/// The forward of an attention. Writes `context`, of the shape of the queries, and `log_sums` [sequences, heads,
/// length]: the logarithm of the sum of e^score over the keys that a query sees, which are those up to its own
/// position. Scores and sums are numbers.
template <class T>
struct attention_call {
  /// The sizes, the rows that are read, the output, and where the logarithm of each row's sum goes; null: nobody asks.
  attention_sizes sizes;
  operand<const T> queries;  // [rows, heads * head_size]
  operand<const T> keys;     // [rows, kv_heads * head_size]
  operand<const T> values;
  operand<T> context;
  compute_type_t<T>* log_sums = nullptr;
};

/// The backward of an attention. Writes the gradients of queries, keys and values, all of them, from that of the
/// context.
template <class T>
struct attention_gradient_call {
  /// The sizes, what the forward read and wrote, the output's gradient, and where the gradients of its inputs go.
  attention_sizes sizes;
  operand<const T> queries;
  operand<const T> keys;
  operand<const T> values;
  operand<const T> context;
  const compute_type_t<T>* log_sums = nullptr;
  operand<const compute_type_t<T>> dcontext;
  operand<compute_type_t<T>> dqueries;
  operand<compute_type_t<T>> dkeys;
  operand<compute_type_t<T>> dvalues;
};

}  // namespace belay::inline BELAY_ABI
