// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reductions: a tag with its arithmetic each. The arithmetic is the same on every backend, ((x0 + x1) + x2) + ... in
// rank order, so that every rank gets the same bits and a reduce_scatter is a slice of the all_reduce. Formats of 16
// bits are added as float. What a reduction does with its total (an average divides it) it does once, before the one
// rounding at the end.
//
//   std::vector<float> loss(1);
//   belay::all_reduce(group, loss, belay::average);
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/finite.hpp"

namespace belay::inline BELAY_ABI {

/// Reductions by their code in fingerprints.
enum class reduction : std::uint8_t { none, sum, minimum, maximum, product, average };
inline constexpr reduction last_reduction = reduction::average;

/// The name, as in errors: "sum", "minimum", ...
[[nodiscard]] constexpr const char* name(reduction which) noexcept {
  switch (which) {
    case reduction::none: return "none";
    case reduction::sum: return "sum";
    case reduction::minimum: return "minimum";
    case reduction::maximum: return "maximum";
    case reduction::product: return "product";
    case reduction::average: return "average";
  }
  return "unknown";
}

/// One boolean, so that a diagnostic does not recite the alternatives.
template <class T>
inline constexpr bool has_reductions =
    (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || std::is_same_v<T, bf16> || std::is_same_v<T, fp16>;

/// Can be reduced: integers, float, double, bf16 and fp16. Formats of 8 bits are moved, never reduced.
template <class T>
concept reducible = has_reductions<T>;

/// Can be moved between ranks byte by byte.
template <class T>
concept transferable = std::is_trivially_copyable_v<T> && !std::is_const_v<T>;

/// The type that holds the total of a reduction of `T` until it is rounded once at the end.
template <reducible T>
using accumulator_of = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

// What integers of `T` are added and multiplied as, so that they wrap: small ones would become int.
template <class T>
using wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

/// Sum; integers wrap.
struct sum_t {
  /// Its code in fingerprints; a + b.
  static constexpr reduction code = reduction::sum;
  template <class T>
  [[nodiscard]] BELAY_HD static constexpr T apply(T a, T b) noexcept {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<wrapping<T>>(a) + static_cast<wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};
/// 1 where an element is NaN, else 0, in loops that are to be vectorised: by a difference, since a comparison of its
/// bits is one of numbers to a compiler, which fast math answers. `is_nan` is for single numbers.
[[nodiscard]] BELAY_HD constexpr std::uint32_t nan_bit(float x) noexcept {
  return (infinity_bits<float> - (__builtin_bit_cast(std::uint32_t, x) & 0x7fffffffU)) >> 31;
}
[[nodiscard]] BELAY_HD constexpr std::uint64_t nan_bit(double x) noexcept {
  return (infinity_bits<double> - (__builtin_bit_cast(std::uint64_t, x) & 0x7fffffffffffffffU)) >> 63;
}
/// `a` where it is NaN, or where it `goes_first` and `b` is not NaN; else `b`.
template <std::floating_point T>
[[nodiscard]] BELAY_HD constexpr T first_or_nan(T a, T b, bool goes_first) noexcept {
  using bits = decltype(nan_bit(a));
  return ((nan_bit(a) | (static_cast<bits>(goes_first) & ~nan_bit(b))) & 1U) != 0 ? a : b;
}
/// The smaller one; a NaN stays.
struct minimum_t {
  /// Its code in fingerprints; the smaller one, or what is no number.
  static constexpr reduction code = reduction::minimum;
  template <class T>
  [[nodiscard]] BELAY_HD static constexpr T apply(T a, T b) noexcept {
    if constexpr (std::is_floating_point_v<T>)
      return first_or_nan(a, b, a < b);
    else
      return a < b ? a : b;
  }
};
/// The larger one; a NaN stays.
struct maximum_t {
  /// Its code in fingerprints; the larger one, or what is no number.
  static constexpr reduction code = reduction::maximum;
  template <class T>
  [[nodiscard]] BELAY_HD static constexpr T apply(T a, T b) noexcept {
    if constexpr (std::is_floating_point_v<T>)
      return first_or_nan(a, b, a > b);
    else
      return a > b ? a : b;
  }
};
/// Product; integers wrap.
struct product_t {
  /// Its code in fingerprints; a times b.
  static constexpr reduction code = reduction::product;
  template <class T>
  [[nodiscard]] BELAY_HD static constexpr T apply(T a, T b) noexcept {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<wrapping<T>>(a) * static_cast<wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};
/// The sum divided by the number of ranks. Integers wrap as in a sum, then their quotient is truncated.
struct average_t {
  /// Its code in fingerprints; a + b, divided by the number of ranks at the end.
  static constexpr reduction code = reduction::average;
  template <class T>
  [[nodiscard]] BELAY_HD static constexpr T apply(T a, T b) noexcept {
    return sum_t::apply(a, b);
  }
  template <class T>
  [[nodiscard]] BELAY_HD static constexpr T finish(T total, int ranks) noexcept {
    if constexpr (std::is_integral_v<T>) {
      // In 64 bits: a small type may not hold the number of ranks.
      using wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
      return static_cast<T>(static_cast<wide>(total) / static_cast<wide>(ranks));
    } else {
      return total / static_cast<T>(ranks);
    }
  }
};

/// The reductions that collectives are given: `group.all_reduce(x, belay::sum)`. An average is the sum divided by the
/// ranks.
inline constexpr sum_t sum{};
inline constexpr minimum_t minimum{};
inline constexpr maximum_t maximum{};
inline constexpr product_t product{};
inline constexpr average_t average{};

/// A reduction has a code for fingerprints, and says how two elements become one.
template <class Op>
concept reduction_tag = requires {
  { Op::code } -> std::convertible_to<reduction>;
}
&&requires(float x) {
  { Op::apply(x, x) } -> std::same_as<float>;
};

/// Does something with the total, once, before it is rounded: `finish(total, ranks)`.
template <class Op>
concept finishing = reduction_tag<Op> && requires(float x, int ranks) {
  { Op::finish(x, ranks) } -> std::same_as<float>;
};

static_assert(reduction_tag<sum_t> && reduction_tag<minimum_t> && reduction_tag<maximum_t> && reduction_tag<product_t>);
static_assert(finishing<average_t> && !finishing<sum_t>);

}  // namespace belay::inline BELAY_ABI
