// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Attention in bf16 by a library that has several engines for it, such as cuDNN. A rank takes the first plan whose bits
// are the same each time and that fits the memory that was planned, by a formula that needs no device; where there is
// none, Belay's own form attends. Each shape keeps what it has got, so a recompute has the bits of its forward, and
// ranks compare it.
//
//   belay::cuda::attends_by<my_library, belay::cuda::runtime_api> api({sizes, rows});  // the largest shape of a run
#pragma once

#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/backend/cuda/library_choices.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/operand.hpp"
#include "belay/device/kit.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Which way an attention is computed.
enum class attention_pass : std::uint8_t { forward, backward };

/// The sizes of an attention, and the rows of all sequences together.
struct attention_extent {
  attention_sizes sizes;  ///< of a head, of heads and of a sequence
  std::size_t rows = 0;   ///< tokens of all sequences

  /// How many there are.
  [[nodiscard]] std::size_t sequences() const noexcept { return sizes.length == 0 ? 0 : rows / sizes.length; }
  /// Elements of the queries, and of the keys.
  [[nodiscard]] checked_size queries() const noexcept { return checked_size(rows) * sizes.heads * sizes.head_size; }
  [[nodiscard]] checked_size keys() const noexcept { return checked_size(rows) * sizes.kv_heads * sizes.head_size; }
  /// Numbers that there are one a row and head of.
  [[nodiscard]] checked_size sums() const noexcept { return checked_size(rows) * sizes.heads; }
};

/// An attention in bf16 as a library is asked for it: all that its answer may depend on. Strides are in elements.
struct attention_problem {
  attention_pass pass = attention_pass::forward;  ///< which way
  /// Sequences and their length, heads of queries and of keys, and the columns of one.
  std::size_t sequences = 0, length = 0, heads = 0, kv_heads = 0, head_size = 0;
  /// Elements from one row to the next.
  std::size_t query_stride = 0, key_stride = 0, value_stride = 0, context_stride = 0;
  std::size_t alignment = 16;  ///< bytes that all rows are aligned to, up to 16

  friend auto operator<=>(const attention_problem&, const attention_problem&) = default;

  /// A hash of all of it, which is the same on all ranks.
  [[nodiscard]] std::uint64_t word() const noexcept {
    fnv1a all;
    all.add_text("attention").add(static_cast<std::uint64_t>(pass));
    for (const std::size_t each : {sequences, length, heads, kv_heads, head_size, query_stride, key_stride,
                                   value_stride, context_stride, alignment})
      all.add(each);
    return all.value();
  }
  /// "an attention forward of 8 sequences of 1024, 16 heads of 64 over 4 of keys".
  [[nodiscard]] std::string text() const {
    return std::string("an attention ") + (pass == attention_pass::forward ? "forward" : "backward") + " of " +
           std::to_string(sequences) + " sequences of " + std::to_string(length) + ", " + std::to_string(heads) +
           " heads of " + std::to_string(head_size) + " over " + std::to_string(kv_heads) + " of keys";
  }
  [[nodiscard]] attention_extent extent() const noexcept {
    return {{heads, kv_heads, head_size, length}, sequences * length};
  }
};

/// The problem of a forward, and of a backward.
template <class Call>
[[nodiscard]] attention_problem problem_of(attention_pass pass, const Call& call) noexcept {
  const attention_sizes& of = call.sizes;
  std::size_t alignment = common_alignment(call.queries);
  for (const std::size_t each :
       {common_alignment(call.keys), common_alignment(call.values), common_alignment(call.context)})
    alignment = each < alignment ? each : alignment;
  return {pass,
          of.length == 0 ? 0 : call.queries.rows / of.length,
          of.length,
          of.heads,
          of.kv_heads,
          of.head_size,
          call.queries.stride,
          call.keys.stride,
          call.values.stride,
          call.context.stride,
          alignment};
}

/// A backward whose gradients are bf16, as libraries have them: dense rows. `sums` [sequences, heads, length] is for
/// the sums of the context by its gradient.
struct narrow_gradient_call {
  /// The sizes, what the forward read and wrote, and the output's gradient.
  attention_sizes sizes;
  operand<const bf16> queries, keys, values, context;  ///< rows of the forward
  const float* log_sums = nullptr;                     ///< of the forward
  operand<const bf16> dcontext;                        ///< dense rows
  /// Where the gradients of its inputs go, and memory for sums.
  operand<bf16> dqueries, dkeys, dvalues;
  float* sums = nullptr;  ///< written
};

/// A library of one stream. `bound(problem)` is what a plan may need beside the operands, by a formula. `plans` writes
/// answers for a problem, as many as have room, the one that it holds for the fastest first, up to the first that
/// serves in `room`; `run` queues by a plan, in memory of that size, which is aligned to 256 bytes. Both return why
/// they could not, or nothing.
template <class L>
concept attention_library = requires(L& library, const attention_problem& problem, std::size_t room,
                                     std::span<library_answer<typename L::plan_type>> answers, std::size_t& count,
                                     const attention_call<bf16>& forward, const narrow_gradient_call& backward,
                                     const typename L::plan_type& plan, std::span<std::byte> memory) {
  requires std::is_trivially_copyable_v<typename L::plan_type>;
  { L::bound(problem) } -> std::same_as<std::size_t>;
  { library.plans(problem, room, answers, count) } -> std::same_as<std::string>;
  { library.run(forward, plan, memory) } -> std::same_as<std::string>;
  { library.run(backward, plan, memory) } -> std::same_as<std::string>;
};

/// The parts of the memory of an attention, one behind the other: of a forward the logarithms of sums, where nobody
/// asks for them, so that its plan is one; of a backward the gradients in bf16, and its sums. Then the library's own.
class attention_parts {
 public:
  /// Of one pass over that extent.
  attention_parts(attention_pass pass, const attention_extent& of) noexcept {
    bytes_[sums] = of.sums() * sizeof(float);
    if (pass == attention_pass::forward) return;
    bytes_[dcontext] = bytes_[dqueries] = of.queries() * sizeof(bf16);
    bytes_[dkeys] = bytes_[dvalues] = of.keys() * sizeof(bf16);
  }
  /// Which of them.
  enum attention_part : std::uint8_t { dcontext, dqueries, dkeys, dvalues, sums, library };

  /// Where a part begins.
  [[nodiscard]] std::size_t offset(attention_part which) const noexcept {
    checked_size at = 0;
    for (std::size_t i = 0; i < which; ++i) at = at + rounded(bytes_[i]);
    return at.saturated();
  }

 private:
  [[nodiscard]] static checked_size rounded(checked_size bytes) noexcept {
    const std::size_t whole = bytes.saturated();
    return (checked_size(whole) + 255).saturated() / 256 * 256;
  }
  std::array<checked_size, 5> bytes_{};
};

/// Memory for all attentions of that extent or of fewer rows, forward and backward: what a run plans.
template <class Library>
[[nodiscard]] std::size_t attention_bytes(const attention_extent& most) noexcept {
  std::size_t all = 0;
  if (most.rows == 0) return all;
  for (const attention_pass pass : {attention_pass::forward, attention_pass::backward}) {
    const attention_sizes& of = most.sizes;
    const attention_problem problem{pass, most.sequences(), of.length, of.heads, of.kv_heads, of.head_size};
    const checked_size needed =
        checked_size(attention_parts(pass, most).offset(attention_parts::library)) + Library::bound(problem);
    if (needed.saturated() > all) all = needed.saturated();
  }
  return all;
}

/// Any Api, whose attention in bf16 is the library's up to that extent; with none, its own. The rest is Api's.
template <class Library, class Api>
class attends_by : public Api {
 public:
  using attention_library = Library;

  /// Up to `most`; nothing by the library where that has no rows. The rest makes the Api.
  template <class... Arguments>
  explicit attends_by(const attention_extent& most, Arguments&&... of)
      : Api(std::forward<Arguments>(of)...), attention_bytes_(cuda::attention_bytes<Library>(most)) {}

  /// Beside `workspace_bytes` and `scratch_bytes`, in what a run gives to a kit.
  [[nodiscard]] std::size_t attention_bytes() const noexcept { return attention_bytes_; }

 private:
  std::size_t attention_bytes_;
};

/// An Api as `attends_by` makes it.
template <class A>
concept library_attending = requires(const A& api) {
  requires attention_library<typename A::attention_library>;
  { api.attention_bytes() } -> std::same_as<std::size_t>;
};

/// Rounds an element of rows that may lie apart into dense ones, and the other way widens it.
struct narrowed_rows {
  operand<const float> from;  ///< as they lie
  bf16* to;                   ///< one row behind the other
  /// One element, counted row by row.
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    to[i] = bf16(from.row(i / from.columns)[i % from.columns]);
  }
};
/// Widens an element of dense rows into rows that may lie apart.
struct widened_rows {
  const bf16* from;   ///< one row behind the other
  operand<float> to;  ///< as they lie
  /// One element, counted row by row.
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    to.row(i / to.columns)[i % to.columns] = static_cast<float>(from[i]);
  }
};

/// The attentions of one kit by the library. `Stream` queues kernels; the library's stream is the same.
template <class Library>
class planned_attention {
 public:
  using plan_type = typename Library::plan_type;

  /// Of a stream of that Api.
  template <class Api>
  planned_attention(Api& api, const typename Api::stream_type& stream) : library_(api, stream) {}

  /// Memory of the device for all calls from now on, which come one after the other.
  void use(std::span<std::byte> memory) noexcept {
    memory_ = memory;
    plans_.forget();
  }

  /// The plan of a problem, null for the own form; at first asks, and notes for other ranks what it has got. `failed`
  /// says why it could not ask.
  [[nodiscard]] const plan_type* plan_of(const attention_problem& problem, kit_choices& noted, std::string& failed) {
    if (const kept_plan* const known = plans_.find(problem)) return known->own ? nullptr : &known->plan;
    const std::size_t before = attention_parts(problem.pass, problem.extent()).offset(attention_parts::library);
    const std::size_t bound = Library::bound(problem);
    const std::size_t left = before > memory_.size() ? 0 : memory_.size() - before;
    const std::size_t room = left < bound ? left : bound;
    std::array<library_answer<plan_type>, 8> answers{};
    std::size_t count = 0;
    if (before <= memory_.size()) failed = library_.plans(problem, room, answers, count);
    if (!failed.empty()) return nullptr;
    library_answer<kept_plan> chosen{{{}, true}, 0, 0, result_bits::repeated};
    if (const auto* const first =
            first_that_serves(std::span<const library_answer<plan_type>>(answers.data(), count), room))
      chosen = {{first->way, false}, first->word, first->workspace_bytes, result_bits::repeated};
    const kept_plan& kept = plans_.keep(problem, chosen, noted);
    return kept.own ? nullptr : &kept.plan;
  }

  /// Queues a call by a plan of its problem, in the order of `stream`. Returns why it could not.
  template <class Stream>
  [[nodiscard]] std::string queue(Stream&, const attention_call<bf16>& call, const plan_type& plan) {
    const attention_parts parts(attention_pass::forward, {call.sizes, call.queries.rows});
    attention_call<bf16> asked = call;
    if (asked.log_sums == nullptr) asked.log_sums = at<float>(parts, attention_parts::sums);
    return library_.run(asked, plan, memory_.subspan(parts.offset(attention_parts::library)));
  }
  template <class Stream>
  [[nodiscard]] std::string queue(Stream& stream, const attention_gradient_call<bf16>& call, const plan_type& plan) {
    const attention_parts parts(attention_pass::backward, {call.sizes, call.queries.rows});
    const auto dense = [&](attention_parts::attention_part which, const auto& like) {
      return operand<bf16>{at<bf16>(parts, which), like.rows, like.columns, like.columns};
    };
    const operand<bf16> dcontext = dense(attention_parts::dcontext, call.dcontext);
    const narrow_gradient_call narrow{call.sizes,
                                      call.queries,
                                      call.keys,
                                      call.values,
                                      call.context,
                                      call.log_sums,
                                      dcontext,
                                      dense(attention_parts::dqueries, call.dqueries),
                                      dense(attention_parts::dkeys, call.dkeys),
                                      dense(attention_parts::dvalues, call.dvalues),
                                      at<float>(parts, attention_parts::sums)};
    stream.each(dcontext.rows * dcontext.columns, narrowed_rows{call.dcontext, dcontext.data});
    std::string failed = library_.run(narrow, plan, memory_.subspan(parts.offset(attention_parts::library)));
    if (!failed.empty()) return failed;
    const auto widen = [&](const operand<bf16>& from, const operand<float>& to) {
      stream.each(to.rows * to.columns, widened_rows{from.data, to});
    };
    widen(narrow.dqueries, call.dqueries), widen(narrow.dkeys, call.dkeys), widen(narrow.dvalues, call.dvalues);
    return failed;
  }

 private:
  struct kept_plan {
    plan_type plan{};
    bool own = true;
  };
  template <class T>
  [[nodiscard]] T* at(const attention_parts& parts, attention_parts::attention_part which) const noexcept {
    return reinterpret_cast<T*>(memory_.data() + parts.offset(which));
  }

  Library library_;
  std::span<std::byte> memory_;
  library_choices<attention_problem, kept_plan> plans_;
};

}  // namespace belay::inline BELAY_ABI::cuda
