// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whether a number is finite, or NaN, by its bits. A comparison or a function of the standard library is no answer in a
// program that is built with -ffinite-math-only, a part of -Ofast and -ffast-math: the compiler takes for granted that
// it is "yes, finite". Nor are bits alone, where the compiler knows by what arithmetic the number was made: what is
// asked here is read from memory in which it could as well have been changed.
//
//   if (!belay::is_finite(norm)) refuse();
//   if (belay::is_nan(share)) line.put("not measured");
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"

namespace belay::inline BELAY_ABI {

/// A number with infinities or NaNs: `float`, `double`, or a format of 16 or 8 bits.
template <class T>
concept floating_number = std::same_as<compute_type_t<T>, float> || std::same_as<T, double>;

/// The bits of a number without its sign, which no compiler has a view of. A format of 16 or 8 bits is asked as float.
/// (By reference: a compiler may take for granted that a number that is passed by value is finite.)
template <floating_number T>
[[nodiscard]] BELAY_HD constexpr auto magnitude_bits(const T& x) noexcept {
  if constexpr (std::same_as<T, float> || std::same_as<T, double>) {
    using bits_type = std::conditional_t<std::same_as<T, float>, std::uint32_t, std::uint64_t>;
    const auto bits = __builtin_bit_cast(bits_type, x);
    constexpr bits_type all = static_cast<bits_type>(~bits_type{0}) >> 1;
    if (__builtin_is_constant_evaluated()) return bits & all;
#if defined(__CUDA_ARCH__)  // (memory would be a stack frame)
    bits_type moved;
    if constexpr (std::same_as<T, float>)
      asm volatile("mov.b32 %0, %1;" : "=r"(moved) : "f"(x));
    else
      asm volatile("mov.b64 %0, %1;" : "=l"(moved) : "d"(x));
    return moved & all;
#else
    const volatile bits_type as_stored = bits;
    return as_stored & all;
#endif
  } else {
    return magnitude_bits(static_cast<float>(x));
  }
}

/// The bits of infinity, in those of a number of type T as `magnitude_bits` gives them.
template <floating_number T>
inline constexpr auto infinity_bits = [] {
  if constexpr (std::same_as<T, double>)
    return std::uint64_t{0x7ff0000000000000};
  else
    return std::uint32_t{0x7f800000};
}();

/// Infinity, and a NaN, as constants to be stored and compared with by the above. (A function does not return one by
/// value where -ffinite-math-only may be: the compiler may take its other result for the only one.)
template <floating_number T>
inline constexpr T infinite = __builtin_bit_cast(T, infinity_bits<T>);
template <floating_number T>
inline constexpr T no_number = __builtin_bit_cast(T, infinity_bits<T> | (infinity_bits<T> >> 1));

/// Whether `x` is neither infinite nor NaN. For single numbers; whether all of an array are, `kernel::are_finite` says
/// faster.
template <floating_number T>
[[nodiscard]] BELAY_HD constexpr bool is_finite(const T& x) noexcept {
  return magnitude_bits(x) < infinity_bits<T>;
}

/// Whether `x` is NaN.
template <floating_number T>
[[nodiscard]] BELAY_HD constexpr bool is_nan(const T& x) noexcept {
  return magnitude_bits(x) > infinity_bits<T>;
}

}  // namespace belay::inline BELAY_ABI
