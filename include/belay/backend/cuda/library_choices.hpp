// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which of a library's ways to compute something a rank takes: the first that the library answers with whose bits are
// the same each time and that fits the memory which was planned. It is asked once for a problem. No clock decides, so
// the choice is that of the library's version and of the kind of device, and ranks compare it.
//
//   belay::cuda::library_choices<product_problem, algorithm> chosen;
//   if (const algorithm* known = chosen.find(problem)) return *known;
//   const auto* first = belay::cuda::first_that_serves(answers, room);  // null: refuse
//   return chosen.keep(problem, *first, noted);
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/operand.hpp"
#include "belay/device/kit.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Whether the same call has the same bits each time. Sums by atomics have not.
enum class result_bits : std::uint8_t { repeated, varying };

/// A library's answer to a problem: a way of its own, which is copied freely.
template <class Way>
struct library_answer {
  /// The way, and a hash of it and of the library's version: where it differs, bits may.
  Way way{};
  std::uint64_t word = 0;
  /// Bytes of memory beside the operands that it needs.
  std::size_t workspace_bytes = 0;
  result_bits bits = result_bits::repeated;
};

/// The first answer that serves: null where there is none.
template <class Way>
[[nodiscard]] constexpr const library_answer<Way>* first_that_serves(std::span<const library_answer<Way>> answers,
                                                                     std::size_t room) noexcept {
  for (const library_answer<Way>& each : answers)
    if (each.bits == result_bits::repeated && each.workspace_bytes <= room) return &each;
  return nullptr;
}

/// The least memory of those whose bits are the same each time; 0 where there are none.
template <class Way>
[[nodiscard]] constexpr std::size_t least_workspace(std::span<const library_answer<Way>> answers) noexcept {
  std::size_t least = 0;
  for (const library_answer<Way>& each : answers)
    if (each.bits == result_bits::repeated && (least == 0 || each.workspace_bytes < least))
      least = each.workspace_bytes;
  return least;
}

/// "of 3 answers 1 has other bits each time, and the others need 4096 bytes or more of 512": why none serves.
template <class Way>
[[nodiscard]] std::string text_of_refusal(std::span<const library_answer<Way>> answers, std::size_t room) {
  std::size_t varying = 0;
  for (const library_answer<Way>& each : answers) varying += each.bits == result_bits::varying ? 1U : 0U;
  std::string out = "of " + std::to_string(answers.size()) + " answers " + std::to_string(varying) +
                    " would have other bits each time";
  if (varying < answers.size())
    out += ", and the others need " + std::to_string(least_workspace(answers)) + " bytes of workspace or more, where " +
           std::to_string(room) + " are planned";
  return out;
}

/// The ways of one rank, by problem. `Problem` has an order, a `word()` that is the same on all ranks, and a `text()`.
template <class Problem, class Way>
class library_choices {
 public:
  /// Null before it was kept. Valid until `forget`.
  [[nodiscard]] const Way* find(const Problem& of) const {
    const auto found = ways_.find(of);
    return found == ways_.end() ? nullptr : &found->second;
  }
  /// Keeps the way of an answer, and notes it for the other ranks.
  const Way& keep(const Problem& of, const library_answer<Way>& chosen, kit_choices& noted) {
    noted.add(of.word(), chosen.word, of.text());
    return ways_.insert_or_assign(of, chosen.way).first->second;
  }
  void forget() noexcept { ways_.clear(); }

 private:
  std::map<Problem, Way> ways_;
};

/// A dense product as a library is asked for it: all that its answer may depend on. Strides are in elements; alignments
/// are those that its operands have, up to the 16 bytes that the widest loads want.
struct product_problem {
  /// Types of the result, and of both factors.
  dtype result = dtype::f32, factors = dtype::f32;
  reading a_as = reading::as_is, b_as = reading::as_is;
  /// The result's sizes, and how long the sums are.
  std::size_t rows = 0, columns = 0, depth = 0;
  std::size_t c_stride = 0, a_stride = 0, b_stride = 0;
  std::size_t c_alignment = 0, a_alignment = 0, b_alignment = 0;

  friend auto operator<=>(const product_problem&, const product_problem&) = default;

  /// A hash of all of it, which is the same on all ranks.
  [[nodiscard]] std::uint64_t word() const noexcept {
    fnv1a all;
    for (const std::size_t each : {static_cast<std::size_t>(result), static_cast<std::size_t>(factors),
                                   static_cast<std::size_t>(a_as), static_cast<std::size_t>(b_as), rows, columns, depth,
                                   c_stride, a_stride, b_stride, c_alignment, a_alignment, b_alignment})
      all.add(each);
    return all.value();
  }
  /// "a product [512, 64] = [512, 32] x [64, 32]^T of BF16 in F32, strides 64 32 32, aligned to 16 16 16".
  [[nodiscard]] std::string text() const {
    const auto matrix = [](std::size_t height, std::size_t width, reading as) {
      const bool turned = as == reading::transposed;
      return "[" + std::to_string(turned ? width : height) + ", " + std::to_string(turned ? height : width) + "]" +
             (turned ? "^T" : "");
    };
    const auto three = [](std::size_t x, std::size_t y, std::size_t z) {
      return " " + std::to_string(x) + " " + std::to_string(y) + " " + std::to_string(z);
    };
    return "a product " + matrix(rows, columns, reading::as_is) + " = " + matrix(rows, depth, a_as) + " x " +
           matrix(depth, columns, b_as) + " of " + std::string(name(factors)) + " in " + std::string(name(result)) +
           ", strides" + three(c_stride, a_stride, b_stride) + ", aligned to" +
           three(c_alignment, a_alignment, b_alignment);
  }
};

/// The largest power of two, up to 16, that the address and the distance of rows are multiples of.
template <class T>
[[nodiscard]] std::size_t common_alignment(const operand<T>& of) noexcept {
  const std::size_t bits = reinterpret_cast<std::uintptr_t>(of.data) | (of.stride * sizeof(T)) | std::size_t{16};
  return bits & (~bits + 1);
}

/// A library that sums in `compute_type_t<C>` is asked this for a call; its alpha and beta change nothing of the
/// answer.
template <class C, class A>
[[nodiscard]] product_problem problem_of(const product_call<C, A, A>& call) noexcept {
  return {dtype_of<C>,
          dtype_of<A>,
          call.a.as,
          call.b.as,
          call.c.rows,
          call.c.columns,
          call.a.width(),
          call.c.stride,
          call.a.stride,
          call.b.stride,
          common_alignment(call.c),
          common_alignment(call.a),
          common_alignment(call.b)};
}

}  // namespace belay::inline BELAY_ABI::cuda
