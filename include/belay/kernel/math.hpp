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
#include "belay/core/dtype/compact_float.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// The scalars that kernels compute with.
template <class T>
concept real = std::same_as<T, float> || std::same_as<T, double>;

/// What a kernel of reals reads and writes: a real, or a narrower format, which is computed with as float.
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

/// e^x, within 2 units in the last place over the normal range. Below the range the result is 0, above it infinity;
/// subnormal results are correct; NaN stays NaN.
[[nodiscard]] BELAY_HD constexpr float exponential(float x) noexcept {
  // Beyond these the result is already 0 or infinity; comparisons keep a NaN as it is.
  x = select(x > 89.0f, 89.0f, x);
  x = select(x < -104.0f, -104.0f, x);
  // Adding 1.5 * 2^23 leaves the nearest integer of x / ln 2 in the low mantissa bits.
  constexpr float rounder = 12582912.0f;
  const float shifted = x * 1.44269504f + rounder;
  const float n = shifted - rounder;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first with zeros below
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  // 2^n in two factors, because 2^n itself may lie outside the normal range when the result does not.
  const auto power = static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, shifted) -
                                               __builtin_bit_cast(std::uint32_t, rounder));
  const std::int32_t half = power >> 1;
  const float scale = __builtin_bit_cast(float, static_cast<std::uint32_t>(half + 127) << 23);
  const float rest = __builtin_bit_cast(float, static_cast<std::uint32_t>(power - half + 127) << 23);
  return p * scale * rest;
}

/// e^x in double: relative error below 1e-15 over the normal range, and the same edge cases.
[[nodiscard]] BELAY_HD constexpr double exponential(double x) noexcept {
  x = select(x > 710.0, 710.0, x);
  x = select(x < -746.0, -746.0, x);
  constexpr double rounder = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = x * 1.4426950408889634 + rounder;
  const double n = shifted - rounder;
  const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
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
  const auto power = static_cast<std::int64_t>(__builtin_bit_cast(std::uint64_t, shifted) -
                                               __builtin_bit_cast(std::uint64_t, rounder));
  const std::int64_t half = power >> 1;
  const double scale = __builtin_bit_cast(double, static_cast<std::uint64_t>(half + 1023) << 52);
  const double rest = __builtin_bit_cast(double, static_cast<std::uint64_t>(power - half + 1023) << 52);
  return p * scale * rest;
}

/// The square root within 1 unit in the last place; 0 and infinity exact, NaN for negative x and NaN.
[[nodiscard]] BELAY_HD constexpr float square_root(float x) noexcept {
  const bool tiny = x < 0x1p-96f;  // moved up so that no intermediate is subnormal
  const float a = select(tiny, x * 0x1p+64f, x);
  // Halving the exponent in the bit pattern gives 1/sqrt(a) to 4 percent; each step squares the error,
  // the last one on the root itself.
  float y = __builtin_bit_cast(float, 0x5f375a86u - (__builtin_bit_cast(std::uint32_t, a) >> 1));
  y = y * (1.5f - 0.5f * a * y * y);
  y = y * (1.5f - 0.5f * a * y * y);
  float root = a * y;
  root = root + 0.5f * y * (a - root * root);
  root = select(tiny, root * 0x1p-32f, root);
  root = select(x > 0.0f, root, x);
  root = select(x > 0x1.fffffep+127f, x, root);
  return select(x < 0.0f, __builtin_nanf(""), root);
}

/// The same of a double.
[[nodiscard]] BELAY_HD constexpr double square_root(double x) noexcept {
  const bool tiny = x < 0x1p-900;
  const double a = select(tiny, x * 0x1p+200, x);
  double y = __builtin_bit_cast(double, 0x5fe6eb50c7b537a9u - (__builtin_bit_cast(std::uint64_t, a) >> 1));
  y = y * (1.5 - 0.5 * a * y * y);
  y = y * (1.5 - 0.5 * a * y * y);
  y = y * (1.5 - 0.5 * a * y * y);
  double root = a * y;
  root = root + 0.5 * y * (a - root * root);
  root = select(tiny, root * 0x1p-100, root);
  root = select(x > 0.0, root, x);
  root = select(x > 0x1.fffffffffffffp+1023, x, root);
  return select(x < 0.0, __builtin_nan(""), root);
}

/// The natural logarithm within 2 units in the last place; minus infinity for 0, NaN for negative x and NaN.
[[nodiscard]] BELAY_HD constexpr float logarithm(float x) noexcept {
  const bool tiny = x < 0x1p-126f;
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, select(tiny, x * 0x1p+32f, x));
  // x = 2^power * (1 + f), with 1 + f between the square roots of 1/2 and 2.
  const auto power = static_cast<std::int32_t>(bits - 0x3f3504f3u) >> 23;
  const float f = __builtin_bit_cast(float, bits - (static_cast<std::uint32_t>(power) << 23)) - 1.0f;
  const float s = f / (2.0f + f);
  const float z = s * s;
  // log(1 + f) = 2 (s + s^3 / 3 + s^5 / 5 + ...) = f - s (f - rest)
  float rest = 2.0f / 11;
  rest = rest * z + 2.0f / 9;
  rest = rest * z + 2.0f / 7;
  rest = rest * z + 2.0f / 5;
  rest = (rest * z + 2.0f / 3) * z;
  const float n = static_cast<float>(power) - select(tiny, 32.0f, 0.0f);
  float y = n * 0.693359375f - ((s * (f - rest) + n * 2.12194440e-4f) - f);
  y = select(x > 0.0f, y, -__builtin_huge_valf());
  y = select(x < 0.0f, __builtin_nanf(""), y);
  return select(x <= 0x1.fffffep+127f, y, x);
}

/// The natural logarithm.
[[nodiscard]] BELAY_HD constexpr double logarithm(double x) noexcept {
  const bool tiny = x < 0x1p-1022;
  const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, select(tiny, x * 0x1p+64, x));
  const auto power = static_cast<std::int64_t>(bits - 0x3fe6a09e667f3bcdu) >> 52;
  const double f = __builtin_bit_cast(double, bits - (static_cast<std::uint64_t>(power) << 52)) - 1.0;
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
  const double n = static_cast<double>(power) - select(tiny, 64.0, 0.0);
  double y = n * 0x1.62e42feep-1 - ((s * (f - rest) - n * 0x1.a39ef35793c76p-33) - f);
  y = select(x > 0.0, y, -__builtin_huge_val());
  y = select(x < 0.0, __builtin_nan(""), y);
  return select(x <= 0x1.fffffffffffffp+1023, y, x);
}

/// 1 / (1 + e^-x).
template <real T>
[[nodiscard]] BELAY_HD constexpr T sigmoid(T x) noexcept {
  return T(1) / (T(1) + exponential(-x));
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
