// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Computes on a device: a `compute_kit` whose kernels and products are those of an Api. Layers reach it through their
// frame, as they reach the kit of the host.
//
//   belay::cuda::kit kit(gpu);
//   kit.each(count, belay::kernel::axpy<float>{0.5F, x, y});
//   kit.product(belay::product_call<float>{c, a, belay::transposed(b)});
//   kit.stream().synchronize();
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/library_attention.hpp"
#include "belay/backend/cuda/library_choices.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/stream_watch.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/losses.hpp"
#include "belay/kernel/product.hpp"
#include "belay/kernel/rows.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Everything may throw the backend_error of an earlier failure: a device tells it late.
template <device_api Api>
class kit {
 public:
  using stream_type = cuda::stream<Api>;
  /// Kernels get a note for findings.
  static constexpr bool notes_findings = true;
  /// Layers ask for one product where they may.
  static constexpr bool joins_products = true;

  /// On the device of this rank's thread; `watch` limits how long a piece of work may run. Throws backend_error.
  explicit kit(const device<Api>& on, std::shared_ptr<const stream_watch> watch = {}, where at = where::current())
      : stream_(on, stream_kind::compute, std::move(watch), at) {}

  /// The stream that all of the kit's work is queued on, in order.
  [[nodiscard]] stream_type& stream() noexcept { return stream_; }

  /// Queue a kernel over `count` indices or teams, a product, and one per expert, on the kit's stream. Throw
  /// backend_error.
  template <kernel::indexed F>
  void each(std::size_t count, const F& f) {
    stream_.each(count, f);
  }
  template <kernel::cooperative G>
  void teams(std::size_t count, const G& g) {
    stream_.teams(count, g);
  }
  template <class C, class A, class B>
  requires kernel::product_operands<C, A, B>
  void product(const product_call<C, A, B>& call) {
    const operand<C>& c = call.c;
    if (c.rows == 0 || c.columns == 0) return;
    const std::size_t bytes = c.rows * c.columns * sizeof(C);
    if constexpr (std::same_as<A, B> && choosing_api<Api, C, A>) {
      if (call.a.width() > 0)
        return stream_.expect(api().product(stream_.handle(), call, algorithm_of(call)), "product", bytes, {});
    }
    stream_.expect(api().product(stream_.handle(), call), "product", bytes, {});
  }
  template <grouped_call Call>
  void grouped(const Call& call, const kernel::findings_note& found = {}) {
    const auto& c = call.c;
    if (c.rows == 0 || c.columns == 0 || call.ends.size() == 0) return;
    std::size_t bytes = c.rows * c.columns * sizeof *c.data;
    if constexpr (requires { c.count; }) bytes *= c.count;
    stream_.expect(api().grouped(stream_.handle(), call, found), "grouped", bytes, {});
  }

  /// Causal attention, where the Api has one: of bf16 by its library, where it has one that serves.
  template <class T>
  requires attending_api<Api, T>
  void attention(const attention_call<T>& call) { attend(attention_pass::forward, call); }
  template <class T>
  requires attending_api<Api, T>
  void attention(const attention_gradient_call<T>& call) { attend(attention_pass::backward, call); }

  /// By all threads of the device, or by one where the run has given no workspace: what `kernel::counted_values`,
  /// `sorted_places` and `selected_positions` do. Of more keys than the kit's scratch memory is for a
  /// sort throws backend_error, with both.
  void histogram(view<const std::int32_t, 1> values, view<std::int64_t, 1> counts) {
    if (scratch_.empty()) return stream_.run(kernel::counted_values{values, counts});
    stream_.expect(api().histogram(stream_.handle(), scratch_, values, counts), "histogram", values.size() * 4, {});
  }
  void sort(view<const std::int32_t, 1> keys, std::size_t limit, view<std::int32_t, 1> places) {
    if (keys.size() == 0) return;
    if (scratch_.empty()) return stream_.run(kernel::sorted_places{keys, limit, places});
    const auto got = api().sort(stream_.handle(), scratch_, keys, limit, places);
    if (!api().succeeded(got)) [[unlikely]]
      if (const std::size_t needs = api().sort_bytes(keys.size(), limit); needs > scratch_.size())
        refuse_sort(keys.size(), needs);
    stream_.expect(got, "sort", keys.size() * 4, {});
  }
  void select(view<const std::int32_t, 1> values, view<std::int32_t, 1> positions, std::int64_t* count) {
    if (scratch_.empty()) return stream_.run(kernel::selected_positions{values, positions, count});
    stream_.expect(api().select(stream_.handle(), scratch_, values, positions, count), "select", values.size() * 4, {});
  }

  /// A loss: each row by a team, then their sum by one team. All by one thread where the run has given no workspace.
  template <kernel::row_losses Loss>
  void loss(const Loss& loss) {
    const std::span<double> memory = scratch<double>();
    constexpr std::size_t lanes = kernel::sum_lanes;
    if (loss.rows() == 0 || memory.size() < 2 * lanes) return stream_.run(loss);
    const std::size_t most = (memory.size() - lanes) / lanes * lanes;
    for (std::size_t first = 0; first < loss.rows(); first += most) {
      const std::size_t count = loss.rows() - first < most ? loss.rows() - first : most;
      teams(count, kernel::losses_of_rows<Loss>{loss, memory.data() + lanes, first});
      teams(1, kernel::summed_losses<Loss>{loss, memory.data(), memory.data() + lanes, first, count});
    }
  }

  /// Sums over rows: groups of rows at once, then their sums, column by column. All rows one after the other where the
  /// run has given no workspace.
  template <class Term, class Sum>
  void add_columns(const kernel::column_sums<Term, Sum>& all) {
    const std::span<Sum> memory = scratch<Sum>();
    const std::size_t groups = kernel::row_group_count(all.rows);
    std::size_t at_once = groups < 2 ? 0 : memory.size() / groups;
    if (at_once < all.width) at_once -= at_once % kernel::columns_of_block;
    if (at_once == 0) return teams(all.blocks(), all);
    for (std::size_t first = 0; first < all.width; first += at_once) {
      const std::size_t count = all.width - first < at_once ? all.width - first : at_once;
      const kernel::group_sums<Term, Sum> of_groups{all, memory.data(), first, count};
      teams(of_groups.indices(), of_groups);
      each(count, kernel::added_groups<Sum>{all.sums + first, memory.data(), count, groups});
    }
  }

  /// Rows that are added to those of a table: they are sorted by their index, and teams add the rows of one. As many at
  /// once as there is memory to sort. One row after the other where they are few, the run has given no workspace, or
  /// the table has more rows than a key can name.
  template <class T, class Index, class Table>
  void add_rows(const kernel::accumulate_rows<T, Index, Table>& all) {
    constexpr std::size_t few = 32, largest_key = 0x7fffffff;
    std::size_t at_once = all.limit < largest_key && !scratch_.empty() ? all.rows : 0;
    while (at_once >= few && 2 * key_bytes(at_once) + api().sort_bytes(at_once, all.limit + 1) > scratch_.size())
      at_once = (at_once + 1) / 2;
    if (at_once < few) return teams(all.blocks(), all);
    for (std::size_t first = 0; first < all.rows; first += at_once) {
      const std::size_t count = all.rows - first < at_once ? all.rows - first : at_once;
      const std::size_t array = key_bytes(count);
      auto* const keys = reinterpret_cast<std::int32_t*>(scratch_.data());
      auto* const places = reinterpret_cast<std::int32_t*>(scratch_.data() + array);
      const kernel::accumulate_sorted_rows<T, Index, Table> sorted{all.part(first, count), keys};
      each(count, kernel::limited_keys<Index>{sorted.of.index, all.limit, keys});
      stream_.expect(
          api().sort(stream_.handle(), scratch_.subspan(2 * array), {keys, {count}}, all.limit + 1, {places, {count}}),
          "sort", count * sizeof *keys, {});
      each(count, kernel::rows_by_place{places, keys});
      teams(sorted.indices(), sorted);
    }
  }

  /// The libraries' ways that the kit's calls have taken.
  [[nodiscard]] kit_choices& choices() noexcept { return choices_; }

  /// Bytes of memory that the run gives to the kit: for products beside their operands, and for its other kernels.
  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return workspace_of(api()); }
  /// Bytes of memory that the run gives to any kit over `api`: for products beside their operands, and for other
  /// kernels.
  [[nodiscard]] static std::size_t workspace_of(const Api& api) noexcept {
    return api.workspace_bytes() + attention_of(api) + api.scratch_bytes();
  }
  /// Memory of the device, aligned to 256 bytes, that outlives what is queued. Of less than `workspace_bytes()`
  /// products get all.
  void use_workspace(std::span<std::byte> memory) {
    const std::size_t of_products = memory.size() < workspace_bytes() ? memory.size() : api().workspace_bytes();
    scratch_ = memory.subspan(of_products);
    if constexpr (library_attending<Api>) {
      const std::size_t of_attention = scratch_.empty() ? 0 : attention_of(api());
      attention_.use(scratch_.first(of_attention));
      scratch_ = scratch_.subspan(of_attention);
    }
    products_.forget();  // there may be room for others
    stream_.expect(api().use_workspace(stream_.handle(), memory.data(), of_products), "use_workspace", of_products, {});
  }

 private:
  // Of an Api whose library does not choose, nothing.
  template <class A>
  struct product_choices {
    void forget() const noexcept {}
  };
  template <class A>
  requires requires { typename A::algorithm_type; }
  struct product_choices<A> : library_choices<product_problem, typename A::algorithm_type> {};

  // Of an Api without a library for attention, nothing.
  template <class A>
  struct attention_choices {
    attention_choices(const A&, const typename A::stream_type&) noexcept {}
  };
  template <library_attending A>
  struct attention_choices<A> : planned_attention<typename A::attention_library> {
    using planned_attention<typename A::attention_library>::planned_attention;
  };

  [[nodiscard]] Api& api() const noexcept { return stream_.api(); }

  // In whole 256 bytes, as what follows it is aligned.
  [[nodiscard]] static std::size_t attention_of(const Api& api) noexcept {
    if constexpr (library_attending<Api>)
      return (api.attention_bytes() + 255) / 256 * 256;
    else
      return 0;
  }
  template <class Call>
  void attend(attention_pass pass, const Call& call) {
    if (call.queries.rows == 0) return;
    const std::size_t bytes = call.queries.rows * call.queries.columns;
    if constexpr (library_attending<Api> && std::is_same_v<decltype(call.queries), operand<const bf16>>) {
      std::string failed;
      if (const auto* const plan = attention_.plan_of(problem_of(pass, call), choices_, failed)) {
        failed = attention_.queue(stream_, call, *plan);
        if (failed.empty()) return;
      }
      if (!failed.empty())
        throw backend_error(
            {"attention", stream_.state()->on().rank(), bytes, "the library of attention: " + failed, {}});
    }
    stream_.expect(api().attention(stream_.handle(), call), "attention", bytes, {});
  }

  // Asked at the first product of its kind: a later step asks and allocates nothing.
  template <class C, class A>
  [[nodiscard]] const auto& algorithm_of(const product_call<C, A, A>& call) {
    using answer = library_answer<typename Api::algorithm_type>;
    const product_problem problem = problem_of(call);
    if (const auto* const known = products_.find(problem)) [[likely]]
      return *known;
    std::array<answer, 8> memory{};
    std::size_t count = 0;
    stream_.expect(api().algorithms(stream_.handle(), problem, memory, count), "algorithms", 0, {});
    const std::span<const answer> answers(memory.data(), count);
    const std::size_t room = api().product_room(stream_.handle());
    if (const answer* const first = first_that_serves(answers, room)) return products_.keep(problem, *first, choices_);
    throw backend_error({"product",
                         stream_.state()->on().rank(),
                         least_workspace(answers),
                         "no algorithm for " + problem.text() + ": " + text_of_refusal(answers, room),
                         {}});
  }

  // Of one call after the other, in the order of the stream.
  template <class T>
  [[nodiscard]] std::span<T> scratch() const noexcept {
    return {reinterpret_cast<T*>(scratch_.data()), scratch_.size() / sizeof(T)};
  }

  // In whole packs.
  [[nodiscard]] static constexpr std::size_t key_bytes(std::size_t keys) noexcept {
    return (keys * sizeof(std::int32_t) + 15) / 16 * 16;
  }

  [[noreturn]] void refuse_sort(std::size_t keys, std::size_t needs) const {
    throw backend_error({"sort",
                         stream_.state()->on().rank(),
                         needs,
                         "a sort of " + std::to_string(keys) + " keys needs " + std::to_string(needs) +
                             " bytes of scratch memory, and the kit has " + std::to_string(scratch_.size()) +
                             ": make the Api with more, as runtime_api(device, runtime_api::scratch_for(keys))",
                         {}});
  }

  stream_type stream_;
  std::span<std::byte> scratch_;
  [[no_unique_address]] product_choices<Api> products_;
  [[no_unique_address]] attention_choices<Api> attention_{api(), stream_.handle()};
  kit_choices choices_;
};

}  // namespace belay::inline BELAY_ABI::cuda
