// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A kit computes: it owns the compute stream, launches kernels on it and multiplies matrices. Layers reach it through
// their frame. `host_kit` computes on a stream of this processor, with the functions for products that it is given.
//
//   belay::host_kit<> kit;                                        // products by the blocked loop
//   kit.each(count, belay::kernel::axpy<float>{0.5F, x, y});
//   kit.teams(rows, belay::kernel::causal_softmax_rows<float>{scores, scores, keys});
//   kit.product(belay::product_call<float>{c, a, belay::transposed(b)});
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/view.hpp"
#include "belay/device/host_stream.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/product.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of a kernel: a queue keeps it by value until it has run.
inline constexpr std::size_t kernel_room = 256;

/// A kernel that a kit can keep: a struct of pointers and scalars.
template <class F>
concept queueable_kernel = std::is_trivially_copyable_v<F> && sizeof(F) <= kernel_room;

/// Some kernel of rows, to say what a kit must take.
struct kernel_of_rows {
  /// Any kernel of teams.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team&, std::size_t) const noexcept {}
};

/// A kit that multiplies operands of these types, as `compute_kit` says.
template <class K, class C, class A, class B>
concept multiplying_kit = requires(K& kit, const product_call<C, A, B>& call, const grouped_rows_call<C, A, B>& rows,
                                   const grouped_stack_call<C, A, B>& stack) {
  kit.product(call);
  kit.grouped(rows);
  kit.grouped(stack);
};

/// A kit computes: kernels over indices, kernels of teams, and products. All of it joins the order of `stream()`;
/// pointers are taken when it is queued, and what they point to is read when it runs.
///
/// `each(n, f)` runs f(0) ... f(n - 1); `teams(n, g)` runs g(team, 0) ... g(team, n - 1). `product(call)` is the one
/// that a `product_call` says, `grouped(call)` those of a `grouped_rows_call` or `grouped_stack_call`, whose ends only
/// the kit reads. `workspace_bytes()` is memory beside operands that it uses: in a rehearsal, what the body's products
/// need. A run plans it, and gives it to a kit that has `use_workspace(memory)`. A kit that looks at ends says
/// `notes_findings`, and takes a `kernel::findings_note` as the last argument of `grouped`, for ends that are none;
/// without a note it throws.
template <class K, class T>
concept compute_kit = multiplying_kit<K, T, T, T> &&
    requires(K& kit, std::size_t n, kernel::fill<T> f, kernel_of_rows g) {
  typename K::stream_type;
  requires stream<typename K::stream_type>;
  { kit.stream() } -> std::same_as<typename K::stream_type&>;
  kit.each(n, f);
  kit.teams(n, g);
  { kit.workspace_bytes() } -> std::same_as<std::size_t>;
};

/// A kit with a causal attention of its own. Where there is none, a layer makes it of products and kernels of rows.
template <class K, class T>
concept attention_kit = requires(K& kit, const attention_call<T>& forward, const attention_gradient_call<T>& backward) {
  kit.attention(forward);
  kit.attention(backward);
};

/// A kit whose device counts and sorts with all its threads, as `kernel::counted_values`, `sorted_places` and
/// `selected_positions` say. A host's kernels do that in passing.
template <class K>
concept sorting_kit = requires(K& kit, view<const std::int32_t, 1> values, view<std::int32_t, 1> places,
                               view<std::int64_t, 1> counts, std::size_t limit, std::int64_t* count) {
  kit.histogram(values, counts);
  kit.sort(values, limit, places);
  kit.select(values, places, count);
};

/// A kit of which layers ask one product for several, over narrow matrices whose rows lie one behind the other
/// (`joined_rows`): it says `joins_products`. A device takes less time so. On a host several sums keep their order.
template <class K>
concept joining_kit = requires {
  requires K::joins_products;
};

/// The choices of a kit's libraries, where they have several ways to compute something: by a hash of the problem one of
/// the way, and the problem in words. A commit compares them between ranks when one of them has chosen anew.
class kit_choices {
 public:
  /// Hashes of a problem and of the way that was taken, and the problem in words.
  struct choice {
    std::uint64_t problem = 0;  ///< of all that an answer depends on
    std::uint64_t way = 0;      ///< of the way, and of the library's version
    std::string text;           ///< what ranks are told that differ
  };

  /// A new problem, or another way of one.
  void add(std::uint64_t problem, std::uint64_t way, std::string text) {
    compared_ = false;
    for (choice& each : all_)
      if (each.problem == problem) return static_cast<void>(each = {problem, way, std::move(text)});
    all_.push_back({problem, way, std::move(text)});
  }
  [[nodiscard]] std::span<const choice> all() const noexcept { return all_; }
  /// Null where there is none.
  [[nodiscard]] const choice* find(std::uint64_t problem) const noexcept {
    for (const choice& each : all_)
      if (each.problem == problem) return &each;
    return nullptr;
  }

  /// Whether all of it was compared, and that it was.
  [[nodiscard]] bool compared() const noexcept { return compared_; }
  void note_compared() noexcept { compared_ = true; }

 private:
  std::vector<choice> all_;
  bool compared_ = true;
};

/// A kit that computes by libraries which choose.
template <class K>
concept choosing_kit = requires(K& kit) {
  { kit.choices() } -> std::same_as<kit_choices&>;
};

/// A kit whose products are made by functions that a program names.
template <class K>
concept takes_products = requires(K& kit, const host_products& products) {
  kit.use_products(products);
};

/// Computes on this processor: at once, or as the settings of its stream say.
template <stream Stream = host_stream>
class host_kit {
 public:
  using stream_type = Stream;
  /// Kernels get a note for findings.
  static constexpr bool notes_findings = true;

  host_kit() = default;
  /// Of rank `rank`, whose work runs as `how` says.
  explicit host_kit(const stream_settings& how, int rank = 0) : stream_(how, rank) {}

  /// The stream that all of the kit's work is queued on, in order.
  [[nodiscard]] stream_type& stream() noexcept { return stream_; }

  /// Queue a kernel over `count` indices or teams, a product, and one per expert, on the kit's stream.
  template <kernel::indexed F>
  void each(std::size_t count, const F& f) {
    stream_.run([count, f] { kernel::for_each_index(count, f); });
  }
  template <kernel::cooperative G>
  void teams(std::size_t count, const G& g) {
    stream_.run([count, g] { kernel::for_each_row(count, g); });
  }
  template <class C, class A, class B>
  requires kernel::product_operands<C, A, B>
  void product(const product_call<C, A, B>& call) {
    if (runs_nothing(stream_)) return note_types(call);
    stream_.run([call, by = products_, panels = panels_] { multiply(by, call, panels); });
  }
  template <grouped_call Call>
  void grouped(const Call& call, const kernel::findings_note& found = {}) {
    if (runs_nothing(stream_)) return note_types(call.of(0, 0, 0));
    stream_.run([call, by = products_, panels = panels_, found] {
      each_group(call.ends, call.a.rows, found, [&](std::size_t e, std::size_t first, std::size_t count) {
        multiply(by, call.of(e, first, count), panels);
      });
    });
  }
  /// Products that are queued from now on are made by `products`.
  void use_products(const host_products& products) noexcept { products_ = products; }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept {
    return panels_ == nullptr && !multiplies_mixed_ ? 0 : sizeof *panels_;
  }
  /// Panels of products of narrow types lie in `memory` from now on, which is aligned to 64 bytes and outlives what is
  /// queued; where it is too small, on the stack of the thread that computes.
  void use_workspace(std::span<std::byte> memory) noexcept {
    static_assert(std::is_trivially_default_constructible_v<kernel::mixed_panels>);  // so bytes may be read as such
    panels_ = memory.size() < sizeof *panels_ ? nullptr : reinterpret_cast<kernel::mixed_panels*>(memory.data());
  }

 private:
  template <class C, class A, class B>
  static void multiply(const host_products& by, const product_call<C, A, B>& call,
                       [[maybe_unused]] kernel::mixed_panels* panels) {
    using number = compute_type_t<C>;
    const operand<C>& c = call.c;
    if (c.rows == 0 || c.columns == 0) return;
    if (call.a.width() != 0) {
      if constexpr (!kernel::mixed_operands<C, A, B>)
        return kernel::product<C>(by, call);
      else if (panels != nullptr)
        return kernel::mixed_product(by, call, *panels);
      else
        return kernel::mixed_product(by, call);
    }
    for (std::size_t row = 0; row < c.rows && call.beta != number(1); ++row)  // a sum of nothing
      for (C& x : std::span<C>(c.row(row), c.columns))
        x = call.beta == number(0) ? C{} : static_cast<C>(call.beta * static_cast<number>(x));
  }
  template <class Index, class Visit>
  static void each_group(view<const Index, 1> ends, std::size_t rows, const kernel::findings_note& found, Visit visit) {
    std::size_t first = 0;
    for (std::size_t e = 0; e < ends.size(); ++e) {
      const auto end = static_cast<std::size_t>(ends[e]);
      if constexpr (checked(check_level::local)) {
        if (end < first || end > rows) {
          if (found) return found.rows_outside(e, end, first, rows);
          throw usage_error("a grouped product: the rows of expert " + std::to_string(e) + " end at " +
                                std::to_string(end) + ", after " + std::to_string(first) + " and of " +
                                std::to_string(rows) + ": were they read before they were written?",
                            {});
        }
      }
      visit(e, first, end - first);
      first = end;
    }
  }

  template <class C, class A, class B>
  void note_types(const product_call<C, A, B>&) noexcept {
    multiplies_mixed_ = multiplies_mixed_ || kernel::mixed_operands<C, A, B>;
  }

  stream_type stream_;
  host_products products_;
  kernel::mixed_panels* panels_ = nullptr;
  bool multiplies_mixed_ = false;  // in a rehearsal
};

static_assert(compute_kit<host_kit<>, float> && compute_kit<host_kit<>, double>);
static_assert(multiplying_kit<host_kit<>, bf16, bf16, bf16>);

}  // namespace belay::inline BELAY_ABI
