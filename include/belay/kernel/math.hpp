// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The transcendental functions that layers need, without branches, calls or tables. A loop over them vectorises with
// any compiler at its default flags (a libm call would not, nor would sqrt while it may set errno), and the last
// elements of a vector get the same values as the others. They need no header, which keeps kernels cheap to include.
//
//   const float y = belay::kernel::silu(x);
//   const float p = belay::kernel::exponential(logit - largest);
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// The scalars that kernels compute with.
template <class T>
concept real = std::same_as<T, float> || std::same_as<T, double>;

/// An element that a kernel of reals reads and writes: a real, or a narrower format, which is computed with as float.
template <class T>
concept stored_real = real<compute_type_t<T>>;

/// An element as the number that is computed with.
template <stored_real T>
[[nodiscard]] BELAY_HD constexpr compute_type_t<T> widened(T x) noexcept {
  return static_cast<compute_type_t<T>>(x);
}

/// `a` where the condition holds, else `b`, by arithmetic on the bits: a conditional expression may become a branch,
/// and a loop with a branch is not vectorised.
[[nodiscard]] BELAY_HD constexpr float select(bool condition, float a, float b) noexcept {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return __builtin_bit_cast(
      float, (__builtin_bit_cast(std::uint32_t, a) & mask) | (__builtin_bit_cast(std::uint32_t, b) & ~mask));
}
[[nodiscard]] BELAY_HD constexpr double select(bool condition, double a, double b) noexcept {
  const std::uint64_t mask = std::uint64_t{0} - static_cast<std::uint64_t>(condition);
  return __builtin_bit_cast(
      double, (__builtin_bit_cast(std::uint64_t, a) & mask) | (__builtin_bit_cast(std::uint64_t, b) & ~mask));
}

/// |x|, by clearing the sign bit.
[[nodiscard]] BELAY_HD constexpr float magnitude(float x) noexcept {
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, x) & 0x7fffffffu);
}
[[nodiscard]] BELAY_HD constexpr double magnitude(double x) noexcept {
  return __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, x) & 0x7fffffffffffffffu);
}

// Fast math lets a compiler cancel, factor and reorder additions, and take for granted that there are neither
// infinities nor NaNs. So what depends on those is decided by bits, and where an order of additions is what makes a
// result right, a term of theirs goes through an integer operation that changes nothing. No compiler knows that, and
// what it cannot see through it cannot reorder; it costs one cheap instruction. (Without fast math the bits are those
// of the plain formula.)

/// The bits of `a` where those of the mask are set, else of `b`.
template <std::unsigned_integral Bits>
[[nodiscard]] BELAY_HD constexpr Bits blend(Bits mask, Bits a, Bits b) noexcept {
  return (a & mask) | (b & ~mask);
}
/// All bits where `x` has the highest one, else none. By it and a subtraction bits are compared with those of infinity,
/// in which a compiler would see a question about numbers otherwise, and numbers of 64 bits with each other: a baseline
/// x86-64 has no comparison of vectors of them.
[[nodiscard]] BELAY_HD constexpr std::uint32_t mask_of_sign(std::uint32_t x) noexcept { return 0u - (x >> 31); }
[[nodiscard]] BELAY_HD constexpr std::uint64_t mask_of_sign(std::uint64_t x) noexcept {
  return std::uint64_t{0} - (x >> 63);
}

/// e^x, within 2 units in the last place over the normal range. Below the range the result is 0, above it infinity;
/// subnormal results are correct unless the processor flushes them to 0; NaN stays NaN.
[[nodiscard]] BELAY_HD constexpr float exponential(float x) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t size = bits & 0x7fffffffu;
  // Beyond 104 the result is already 0 or infinity.
  const std::int32_t beyond = static_cast<std::int32_t>(size) - 0x42d00000;
  const float a = __builtin_bit_cast(float, bits - static_cast<std::uint32_t>(beyond > 0 ? beyond : 0));
  // Adding 1.5 * 2^23 + 127 leaves the nearest integer of a / ln 2, and 127, in the low mantissa bits.
  constexpr float rounder = 12583039.0f;
  const std::uint32_t shifted = __builtin_bit_cast(std::uint32_t, a * 1.44269504f + rounder);
  const auto power = static_cast<std::int32_t>(shifted - __builtin_bit_cast(std::uint32_t, rounder));
  const auto n = static_cast<float>(power);
  // ln 2 in two parts, the first with zeros below, so that the first difference is exact. Bit 23 of `shifted` is 0.
  const float reduced =
      __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, a - n * 0.693359375f) ^ (shifted & 0x00800000u));
  const float r = reduced + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  // 2^n in two factors, because 2^n itself may lie outside the normal range when the result does not. The first is
  // added to the exponent of p, which is between 1/2 and 2.
  const std::uint32_t half = static_cast<std::uint32_t>(power >> 1) << 23;
  const float scaled = __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, p) + half);
  const float rest = __builtin_bit_cast(float, (shifted << 23) - half);
  const std::uint32_t result = __builtin_bit_cast(std::uint32_t, scaled* rest);
  return __builtin_bit_cast(float, result | (bits & mask_of_sign(0x7f800000u - size)));
}

/// e^x in double: relative error below 1e-15 over the normal range, and the same edge cases.
[[nodiscard]] BELAY_HD constexpr double exponential(double x) noexcept {
  // Beyond 746 the result is already 0 or infinity.
  const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, x);
  const std::uint64_t size = bits & 0x7fffffffffffffffu;
  const std::uint64_t beyond = size - 0x4087500000000000u;
  const double a = __builtin_bit_cast(double, bits - (beyond & ~mask_of_sign(beyond)));
  constexpr double rounder = 6755399441055744.0 + 1023.0;  // 1.5 * 2^52
  const std::uint64_t shifted = __builtin_bit_cast(std::uint64_t, a * 1.4426950408889634 + rounder);
  // Bit 54 of `shifted` is 0. (A baseline x86-64 does not convert vectors of 64-bit integers.)
  constexpr std::uint64_t zero = 0x0040000000000000u;
  const double n = __builtin_bit_cast(double, shifted & ~zero) - rounder;
  const double reduced =
      __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, a - n * 0x1.62e42feep-1) ^ (shifted & zero));
  const double r = reduced - n * 0x1.a39ef35793c76p-33;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = (p * r) * r + r + 1.0;
  // (n + 1023) / 2 - 511, in the bits of an exponent.
  const std::uint64_t half = ((shifted << 51) & 0xfff0000000000000u) - (std::uint64_t{511} << 52);
  const double scaled = __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, p) + half);
  const double rest = __builtin_bit_cast(double, (shifted << 52) - half);
  const std::uint64_t result = __builtin_bit_cast(std::uint64_t, scaled* rest);
  return __builtin_bit_cast(double, result | (bits & mask_of_sign(0x7ff0000000000000u - size)));
}

/// The square root within 1 unit in the last place; 0 and infinity exact, NaN for negative x and NaN.
[[nodiscard]] BELAY_HD constexpr float square_root(float x) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t size = bits & 0x7fffffffu;
  const std::uint32_t tiny = mask_of_sign(size - 0x0f800000u);  // 2^-96; moved up so that no intermediate is subnormal
  const float a = __builtin_bit_cast(float, blend(tiny, __builtin_bit_cast(std::uint32_t, x * 0x1p+64f), bits));
  // Halving the exponent in the bit pattern gives 1/sqrt(a) to 4 percent. Each step squares the error, of the root and
  // of half its inverse, the last one of the root by what it leaves of a. No product of two of them is far from a or 1.
  const float y = __builtin_bit_cast(float, 0x5f375a86u - (__builtin_bit_cast(std::uint32_t, a) >> 1));
  float root = a * y;
  float inverse = 0.5f * y;
  for (int step = 0; step < 2; ++step) {
    const float off = 0.5f - root * inverse;
    root = root + root * off;
    inverse = inverse + inverse * off;
  }
  root = root + inverse * (a - root * root);
  const std::uint32_t found = __builtin_bit_cast(std::uint32_t, root) - (tiny & (32u << 23));
  // A value that is no positive number stays, but for a negative one, which becomes NaN.
  const std::uint32_t outside = mask_of_sign((bits - 1) | (0x7f7fffffu - bits));
  return __builtin_bit_cast(float, blend(outside, bits | (mask_of_sign(bits & (bits - 1)) & 0x7fc00000u), found));
}

/// The square root of a double within 1 unit in the last place; 0 and infinity exact, NaN for negative x and NaN.
[[nodiscard]] BELAY_HD constexpr double square_root(double x) noexcept {
  const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, x);
  const std::uint64_t size = bits & 0x7fffffffffffffffu;
  const std::uint64_t tiny = mask_of_sign(size - 0x07b0000000000000u);  // 2^-900
  const double a = __builtin_bit_cast(double, blend(tiny, __builtin_bit_cast(std::uint64_t, x * 0x1p+200), bits));
  const double y = __builtin_bit_cast(double, 0x5fe6eb50c7b537a9u - (__builtin_bit_cast(std::uint64_t, a) >> 1));
  double root = a * y;
  double inverse = 0.5 * y;
  for (int step = 0; step < 3; ++step) {
    const double off = 0.5 - root * inverse;
    root = root + root * off;
    inverse = inverse + inverse * off;
  }
  root = root + inverse * (a - root * root);
  const std::uint64_t found = __builtin_bit_cast(std::uint64_t, root) - (tiny & (std::uint64_t{100} << 52));
  const std::uint64_t outside = mask_of_sign((bits - 1) | (0x7fefffffffffffffu - bits));
  const std::uint64_t negative = mask_of_sign(bits & (bits - 1));
  return __builtin_bit_cast(double, blend(outside, bits | (negative & 0x7ff8000000000000u), found));
}

/// The natural logarithm within 2 units in the last place; minus infinity for 0, NaN for negative x and NaN.
[[nodiscard]] BELAY_HD constexpr float logarithm(float x) noexcept {
  const std::uint32_t given = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t size = given & 0x7fffffffu;
  const std::uint32_t tiny = mask_of_sign(size - 0x00800000u);
  const std::uint32_t bits = blend(tiny, __builtin_bit_cast(std::uint32_t, x * 0x1p+32f), given);
  // x = 2^power * (1 + f), with 1 + f between the square roots of 1/2 and 2. The lowest bit of f is 0.
  const auto power = static_cast<std::int32_t>(bits - 0x3f3504f3u) >> 23;
  const float above = __builtin_bit_cast(float, bits - (static_cast<std::uint32_t>(power) << 23)) - 1.0f;
  const float f = __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, above) & 0xfffffffeu);
  const float s = f / (2.0f + f);
  const float z = s * s;
  // log(1 + f) = 2 (s + s^3 / 3 + s^5 / 5 + ...) = f - s (f - rest)
  float rest = 2.0f / 11;
  rest = rest * z + 2.0f / 9;
  rest = rest * z + 2.0f / 7;
  rest = rest * z + 2.0f / 5;
  rest = (rest * z + 2.0f / 3) * z;
  const auto n = static_cast<float>(power - static_cast<std::int32_t>(tiny & 32u));
  // z is below 2, so that its bit 30 is 0.
  const float less =
      __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, (s * (f - rest) + n * 2.12194440e-4f) - f) ^
                                    (__builtin_bit_cast(std::uint32_t, z) & 0x40000000u));
  const std::uint32_t found = __builtin_bit_cast(std::uint32_t, n * 0.693359375f - less);
  // 0 becomes minus infinity, what is below it NaN. (A constant of either could be taken for one that never is chosen.)
  const std::uint32_t below = given | 0xff800000u | (mask_of_sign(0u - size) & 0x00400000u);
  const std::uint32_t other = blend(mask_of_sign(given | (given - 1)), below, given);
  return __builtin_bit_cast(float, blend(mask_of_sign((given - 1) | (0x7f7fffffu - given)), other, found));
}

/// The natural logarithm.
[[nodiscard]] BELAY_HD constexpr double logarithm(double x) noexcept {
  const std::uint64_t given = __builtin_bit_cast(std::uint64_t, x);
  const std::uint64_t size = given & 0x7fffffffffffffffu;
  const std::uint64_t tiny = mask_of_sign(size - 0x0010000000000000u);
  const std::uint64_t bits = blend(tiny, __builtin_bit_cast(std::uint64_t, x * 0x1p+64), given);
  const auto power = static_cast<std::int64_t>(bits - 0x3fe6a09e667f3bcdu) >> 52;
  const double above = __builtin_bit_cast(double, bits - (static_cast<std::uint64_t>(power) << 52)) - 1.0;
  const double f = __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, above) & 0xfffffffffffffffeu);
  const double s = f / (2.0 + f);
  const double z = s * s;
  double rest = 2.0 / 23;
  rest = rest * z + 2.0 / 21;
  rest = rest * z + 2.0 / 19;
  rest = rest * z + 2.0 / 17;
  rest = rest * z + 2.0 / 15;
  rest = rest * z + 2.0 / 13;
  rest = rest * z + 2.0 / 11;
  rest = rest * z + 2.0 / 9;
  rest = rest * z + 2.0 / 7;
  rest = rest * z + 2.0 / 5;
  rest = (rest * z + 2.0 / 3) * z;
  const auto n = static_cast<double>(power - static_cast<std::int64_t>(tiny & 64u));
  const double less =
      __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, (s * (f - rest) - n * 0x1.a39ef35793c76p-33) - f) ^
                                     (__builtin_bit_cast(std::uint64_t, z) & 0x4000000000000000u));
  const std::uint64_t found = __builtin_bit_cast(std::uint64_t, n * 0x1.62e42feep-1 - less);
  const std::uint64_t below = given | 0xfff0000000000000u | (mask_of_sign(0u - size) & 0x0008000000000000u);
  const std::uint64_t other = blend(mask_of_sign(given | (given - 1)), below, given);
  return __builtin_bit_cast(double, blend(mask_of_sign((given - 1) | (0x7fefffffffffffffu - given)), other, found));
}

/// 1 / (1 + e^-x), by e^-|x|: the reciprocal of an infinity, as fast math computes it, may be NaN. Nor does it divide a
/// small number, of whose quotient's correction nothing would be left where subnormal numbers are flushed.
[[nodiscard]] BELAY_HD constexpr float sigmoid(float x) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  const float e = exponential(__builtin_bit_cast(float, bits | 0x80000000u));
  // e is at most 1, so that its bit 30 is 0: a quotient is not made of a product.
  const float inverse = __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, 1.0f / (1.0f + e)) |
                                                      (__builtin_bit_cast(std::uint32_t, e) & 0x40000000u));
  return select(x < 0.0f, e, 1.0f) * inverse;
}
[[nodiscard]] BELAY_HD constexpr double sigmoid(double x) noexcept {
  const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, x);
  const double e = exponential(__builtin_bit_cast(double, bits | 0x8000000000000000u));
  const std::uint64_t above =
      blend(mask_of_sign(bits), __builtin_bit_cast(std::uint64_t, e), std::uint64_t{0x3ff0000000000000u});
  return __builtin_bit_cast(double, above) / (1.0 + e);
}

/// d sigmoid(x) / dx.
template <real T>
[[nodiscard]] BELAY_HD constexpr T sigmoid_derivative(T x) noexcept {
  const T s = sigmoid(x);
  return s * (T(1) - s);
}

/// x * sigmoid(x).
template <real T>
[[nodiscard]] BELAY_HD constexpr T silu(T x) noexcept {
  return x * sigmoid(x);
}

/// d silu(x) / dx.
template <real T>
[[nodiscard]] BELAY_HD constexpr T silu_derivative(T x) noexcept {
  const T s = sigmoid(x);
  return s * (T(1) + x * (T(1) - s));
}

}  // namespace belay::inline BELAY_ABI::kernel
