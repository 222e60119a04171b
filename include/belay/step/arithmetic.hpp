// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a frame says to its kit: kernels and products, queued in order. It checks what a layer's author can get wrong,
// shapes and the kind of kernel, so that a kit need not.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"

namespace belay::inline BELAY_ABI {

/// The shape of a product's operand, for messages.
struct operand_shape {
  /// As it lies in memory, and whether it is read transposed.
  std::size_t rows = 0;
  std::size_t columns = 0;
  reading as = reading::as_is;

  template <class T>
  [[nodiscard]] static operand_shape of(const operand<T>& what) noexcept {
    return {what.rows, what.columns, what.as};
  }
};
/// A product of shapes that do not fit, in words: throws usage_error.
struct refused_product {
  std::size_t layer_index;
  const char* layer;
  const char* what;
  operand_shape c, a, b;

  [[noreturn, gnu::cold]] void refuse(where at) const;
};

/// The base of a frame, which has `kit()`.
template <class Frame>
class frame_arithmetic {
 public:
  /// Queues f(0) ... f(count - 1), in any order. A kernel is a named struct of pointers and scalars, which are taken
  /// now and used when it runs. A rehearsal does not run it.
  template <class F>
  void each(std::size_t count, const F& f) {
    if constexpr (takes_kernel<F>()) kit().each(count, f);
  }
  /// Queues g(team, 0) ... g(team, count - 1), each done by one team.
  template <class G>
  void teams(std::size_t count, const G& g) {
    if constexpr (takes_kernel<G>()) kit().teams(count, g);
  }

  /// Queue the kernel that `make(sums, arguments...)` gives, as `each`, `teams`, `add_columns` and `add_rows` do:
  /// it adds to a parameter's gradient, whose memory is `sums`. In the first half of a backward that runs in two it is
  /// noted, and runs in the second. So what the kernel reads comes as `arguments`, views of it and numbers, and that
  /// memory lives until then; `make` itself captures nothing.
  template <class Sum, class Make, class... Arguments>
  void each_into(const added_to<Sum>& total, std::size_t count, const Make&, const Arguments&... arguments) {
    add_kernel<queue_each, Make>(total, count, arguments...);
  }
  template <class Sum, class Make, class... Arguments>
  void teams_into(const added_to<Sum>& total, std::size_t count, const Make&, const Arguments&... arguments) {
    add_kernel<queue_teams, Make>(total, count, arguments...);
  }
  template <class Sum, class Make, class... Arguments>
  void columns_into(const added_to<Sum>& total, const Make&, const Arguments&... arguments) {
    add_kernel<queue_columns, Make>(total, 0, arguments...);
  }
  template <class Sum, class Make, class... Arguments>
  void rows_into(const added_to<Sum>& total, const Make&, const Arguments&... arguments) {
    add_kernel<queue_rows, Make>(total, 0, arguments...);
  }

  /// Queues a `kernel::column_sums`: sums over rows, one for each column, which are added to what `all.sums` has. The
  /// bits are those of one thread.
  template <class Sums>
  void add_columns(const Sums& all) {
    if constexpr (!takes_kernel<Sums>())
      return;
    else if constexpr (requires { kit().add_columns(all); })
      kit().add_columns(all);
    else
      kit().teams(all.blocks(), all);
  }
  /// Queues a `kernel::accumulate_rows`: rows that are added to those of a table, of which each index has one. The bits
  /// are those of one thread.
  template <class Rows>
  void add_rows(const Rows& all) {
    if constexpr (!takes_kernel<Rows>())
      return;
    else if constexpr (requires { kit().add_rows(all); })
      kit().add_rows(all);
    else
      kit().teams(all.blocks(), all);
  }

  /// Queues c = alpha a b; c += alpha a b where c is `adding_to(...)`. Operands are views of two dimensions, parts of
  /// them, or what `read` gives; `transposed(x)` is read so. They may be bf16 and float in any mixture: products are
  /// summed in float and rounded once. Throws usage_error where the shapes do not fit.
  template <matrix_operand C, matrix_operand A, matrix_operand B>
  void product(const C& c, const A& a, const B& b, double alpha = 1, where at = where::current()) {
    multiply(operand_of(c), operand_of(a), operand_of(b), alpha, 0, at);
  }
  template <class C, matrix_operand A, matrix_operand B>
  void product(const added_to<C>& c, const A& a, const B& b, double alpha = 1, where at = where::current()) {
    expect_product(operand_of(memory_of(c)), operand_of(a), operand_of(b), at);
    add_or_note(
        c, dense_addition<decltype(operand_of(a)), decltype(operand_of(b))>{operand_of(a), operand_of(b), alpha, at},
        operand_of(a), operand_of(b));
  }

  /// Queues a product per expert: expert e has the rows [ends[e - 1], ends[e]), and `ends` is not read before it runs.
  /// With a stack for b, rows of c = rows of a times b[e]. With a stack for c, and a transposed, c[e] = rows of a,
  /// transposed, times rows of b.
  template <matrix_operand C, matrix_operand A, matrix_stack B, std::integral Index>
  void grouped(const C& c, const A& a, const B& b, view<const Index, 1> ends, where at = where::current()) {
    multiply_rows(operand_of(c), operand_of(a), stack_of(b), ends, 0, at);
  }
  template <matrix_operand C, matrix_operand A, matrix_stack B, std::integral Index>
  void grouped(const added_to<C>& c, const A& a, const B& b, view<const Index, 1> ends, where at = where::current()) {
    expect_rows(operand_of(memory_of(c)), operand_of(a), stack_of(b), ends, at);
    using addition = rows_addition<decltype(operand_of(a)), decltype(stack_of(b)), Index>;
    add_or_note(c, addition{operand_of(a), stack_of(b), ends, at}, operand_of(a), all_of(stack_of(b)), ends);
  }
  template <matrix_stack C, matrix_operand A, matrix_operand B, std::integral Index>
  void grouped(const C& c, const A& a, const B& b, view<const Index, 1> ends, where at = where::current()) {
    multiply_stack(stack_of(c), operand_of(a), operand_of(b), ends, 0, at);
  }
  template <matrix_stack C, matrix_operand A, matrix_operand B, std::integral Index>
  void grouped(const added_to<C>& c, const A& a, const B& b, view<const Index, 1> ends, where at = where::current()) {
    expect_stack(stack_of(memory_of(c)), operand_of(a), operand_of(b), ends, at);
    using addition = stack_addition<decltype(operand_of(a)), decltype(operand_of(b)), Index>;
    add_or_note(c, addition{operand_of(a), operand_of(b), ends, at}, operand_of(a), operand_of(b), ends);
  }

  /// Whether additions to gradients are noted for later; see `frame`.
  [[nodiscard]] static constexpr bool notes_additions() noexcept { return false; }

 protected:
  frame_arithmetic() = default;
  ~frame_arithmetic() = default;

 private:
  [[nodiscard]] auto& kit() const noexcept { return static_cast<const Frame&>(*this).kit(); }

  // Additions to sums, by value: they run now, or are noted.
  template <class A, class B>
  struct dense_addition {
    A a;
    B b;
    double alpha;
    where at;
    template <class Sum>
    void operator()(frame_arithmetic& frame, const added_to<Sum>& c) const {
      frame.queue_product(operand_of(memory_of(c)), a, b, alpha, share_kept(c));
    }
  };
  template <class A, class B, class Index>
  struct stack_addition {
    A a;
    B b;
    view<const Index, 1> ends;
    where at;
    template <class Sum>
    void operator()(frame_arithmetic& frame, const added_to<Sum>& c) const {
      frame.queue_stack(stack_of(memory_of(c)), a, b, ends, share_kept(c), at);
    }
  };
  template <class A, class B, class Index>
  struct rows_addition {
    A a;
    B b;
    view<const Index, 1> ends;
    where at;
    template <class Sum>
    void operator()(frame_arithmetic& frame, const added_to<Sum>& c) const {
      frame.queue_rows_product(operand_of(memory_of(c)), a, b, ends, share_kept(c), at);
    }
  };
  template <class Queue, class Make, class... Arguments>
  struct kernel_addition {
    std::size_t count;
    std::tuple<Arguments...> arguments;
    template <class Sum>
    void operator()(frame_arithmetic& frame, const added_to<Sum>& total) const {
      const auto kernel_of = [&](const Arguments&... given) { return Make{}(total.data(), given...); };
      Queue()(frame, count, std::apply(kernel_of, arguments));
    }
  };
  struct queue_each {
    void operator()(frame_arithmetic& frame, std::size_t count, const auto& kernel) const { frame.each(count, kernel); }
  };
  struct queue_teams {
    void operator()(frame_arithmetic& frame, std::size_t count, const auto& kernel) const {
      frame.teams(count, kernel);
    }
  };
  struct queue_columns {
    void operator()(frame_arithmetic& frame, std::size_t, const auto& kernel) const { frame.add_columns(kernel); }
  };
  struct queue_rows {
    void operator()(frame_arithmetic& frame, std::size_t, const auto& kernel) const { frame.add_rows(kernel); }
  };

  template <class Make, class... Arguments>
  [[nodiscard]] static consteval bool makes_kernel() {
    constexpr bool named = std::is_empty_v<Make> && (... && !std::is_pointer_v<Arguments>);
    static_assert(named,
                  "belay: a kernel that adds to a gradient may run later: its maker captures nothing, and gets the "
                  "views that the kernel reads as arguments, no pointers, so that their memory lives until it has run");
    return named;
  }
  // Of arguments that are views the memory is read.
  template <class Queue, class Make, class Sum, class... Arguments>
  void add_kernel(const added_to<Sum>& total, std::size_t count, const Arguments&... arguments) {
    const auto read = [](const auto& given) {
      if constexpr (requires { given.data(), given.size_bytes(); })
        return view<const std::byte, 1>(reinterpret_cast<const std::byte*>(given.data()), {given.size_bytes()});
      else
        return view<const std::byte, 1>(nullptr, {0});
    };
    if constexpr (makes_kernel<Make, Arguments...>())
      add_or_note(total, kernel_addition<Queue, Make, Arguments...>{count, std::tuple<Arguments...>(arguments...)},
                  read(arguments)...);
  }
  // A frame of a test has no notes.
  template <class Sum, class Addition, class... Read>
  void add_or_note(const added_to<Sum>& total, const Addition& addition, const Read&... reads) {
    if constexpr (requires(Frame & frame) { frame.add(total, addition, reads...); })
      static_cast<Frame&>(*this).add(total, addition, reads...);
    else
      addition(*this, total);
  }

  template <class F>
  [[nodiscard]] static consteval bool takes_kernel() {
    static_assert(
        queueable_kernel<F>,
        "belay: a kernel is kept by value until it has run: make it a struct of pointers and scalars, at most "
        "256 bytes");
    return queueable_kernel<F>;
  }

  template <class T, class U, class V>
  [[nodiscard]] static consteval bool takes_product() {
    constexpr bool takes = multiplying_kit<std::remove_cvref_t<decltype(std::declval<const Frame&>().kit())>, T, U, V>;
    static_assert(takes,
                  "belay: the operands of a product are all float, all double, or float and narrower formats such as "
                  "bf16, which the engine's kit must take: belay::host_kit does");
    return takes;
  }

  // `queue(note)` where the kit notes which ends of rows are none, else `queue()`.
  template <class Queue>
  void noting([[maybe_unused]] where at, const Queue& queue) const {
    if constexpr (requires { std::remove_cvref_t<decltype(kit())>::notes_findings; })
      queue(static_cast<const Frame&>(*this).found(at));
    else
      queue();
  }

  template <class T, class U, class V>
  void expect_product(operand<T> c, operand<U> a, operand<V> b, where at) const {
    if (a.height() != c.rows || b.width() != c.columns || a.width() != b.height() || c.as != reading::as_is)
        [[unlikely]]
      refuse("product", c, a, b, at);
  }
  template <class T, class U, class V>
  void multiply(operand<T> c, operand<U> a, operand<V> b, double alpha, int share, where at) {
    expect_product(c, a, b, at);
    queue_product(c, a, b, alpha, share);
  }
  template <class T, class U, class V>
  void queue_product(operand<T> c, operand<U> a, operand<V> b, double alpha, int share) {
    using number = compute_type_t<T>;
    if constexpr (takes_product<T, std::remove_const_t<U>, std::remove_const_t<V>>())
      kit().product(product_call<T, std::remove_const_t<U>, std::remove_const_t<V>>{c, a, b, static_cast<number>(alpha),
                                                                                    static_cast<number>(share)});
  }
  // The matrices of a stack, one below another: they are dense.
  template <class T>
  [[nodiscard]] static operand<T> all_of(operand_stack<T> stack) noexcept {
    return {stack.data, stack.count * stack.rows, stack.columns, stack.columns};
  }
  template <class T, class U, class V, class Index>
  void expect_rows(operand<T> c, operand<U> a, operand_stack<V> b, view<const Index, 1> ends, where at) const {
    if (a.rows != c.rows || b.width() != c.columns || a.columns != b.height() || b.count != ends.size() ||
        a.as != reading::as_is || c.as != reading::as_is) [[unlikely]]
      refuse("grouped product", c, a, b[0], at);
  }
  template <class T, class U, class V, class Index>
  void multiply_rows(operand<T> c, operand<U> a, operand_stack<V> b, view<const Index, 1> ends, int share, where at) {
    expect_rows(c, a, b, ends, at);
    queue_rows_product(c, a, b, ends, share, at);
  }
  template <class T, class U, class V, class Index>
  void queue_rows_product(operand<T> c, operand<U> a, operand_stack<V> b, view<const Index, 1> ends, int share,
                          where at) {
    queue_grouped(grouped_rows_call<T, std::remove_const_t<U>, std::remove_const_t<V>, Index>{c, a, b, ends}, share,
                  at);
  }
  template <class T, class U, class V, class Index>
  void expect_stack(operand_stack<T> c, operand<U> a, operand<V> b, view<const Index, 1> ends, where at) const {
    if (a.columns != c.rows || b.columns != c.columns || a.rows != b.rows || c.count != ends.size() ||
        a.as != reading::transposed || b.as != reading::as_is || c.as != reading::as_is) [[unlikely]]
      refuse("grouped product", c[0], a, b, at);
  }
  template <class T, class U, class V, class Index>
  void multiply_stack(operand_stack<T> c, operand<U> a, operand<V> b, view<const Index, 1> ends, int share, where at) {
    expect_stack(c, a, b, ends, at);
    queue_stack(c, a, b, ends, share, at);
  }
  template <class T, class U, class V, class Index>
  void queue_stack(operand_stack<T> c, operand<U> a, operand<V> b, view<const Index, 1> ends, int share, where at) {
    queue_grouped(grouped_stack_call<T, std::remove_const_t<U>, std::remove_const_t<V>, Index>{c, a, b, ends}, share,
                  at);
  }
  template <template <class, class, class, class> class Call, class C, class A, class B, class Index>
  void queue_grouped(Call<C, A, B, Index> call, int share, where at) {
    call.beta = static_cast<compute_type_t<C>>(share);
    if constexpr (takes_product<C, A, B>()) noting(at, [&](const auto&... found) { kit().grouped(call, found...); });
  }

  template <class T, class U, class V>
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(const char* what, operand<T> c, operand<U> a, operand<V> b,
                                                     where at) const {
    const Frame& frame = static_cast<const Frame&>(*this);
    refused_product{frame.layer_index(),  frame.layer(),        what,
                    operand_shape::of(c), operand_shape::of(a), operand_shape::of(b)}
        .refuse(at);
  }
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/step/arithmetic.ipp"  // IWYU pragma: export
#endif
