// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The lesser and the greater of values, and the largest value of a type, under names that no header of others defines
// as a macro: many a C header has a `min` and a `max` of its own, and Belay's headers come after any.
//
//   const std::size_t count = belay::lesser_of(left, belay::largest_value<std::int32_t> / size);
#pragma once

#include <cfloat>
#include <concepts>
#include <initializer_list>
#include <type_traits>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The lesser of two values; `a` where they are equal. A reference to one of them, as long-lived as it is.
template <class T>
[[nodiscard]] constexpr const T& lesser_of(const T& a, const T& b) {
  return b < a ? b : a;
}
/// The lesser of two numbers, also in kernels: what others compare by, such as durations, a device may not call.
template <class T>
  requires std::is_arithmetic_v<T>
[[nodiscard]] BELAY_HD constexpr const T& lesser_of(const T& a, const T& b) {
  return b < a ? b : a;
}

/// The greater of two values; `a` where they are equal. A reference to one of them, as long-lived as it is.
template <class T>
[[nodiscard]] constexpr const T& greater_of(const T& a, const T& b) {
  return a < b ? b : a;
}
/// The greater of two numbers, also in kernels.
template <class T>
  requires std::is_arithmetic_v<T>
[[nodiscard]] BELAY_HD constexpr const T& greater_of(const T& a, const T& b) {
  return a < b ? b : a;
}

/// The least of some values, of which there is at least one.
template <class T>
[[nodiscard]] constexpr T lesser_of(std::initializer_list<T> values) {
  T least = *values.begin();
  for (const T& value : values) least = lesser_of(least, value);
  return least;
}

/// The greatest of some values, of which there is at least one.
template <class T>
[[nodiscard]] constexpr T greater_of(std::initializer_list<T> values) {
  T most = *values.begin();
  for (const T& value : values) most = greater_of(most, value);
  return most;
}

/// The largest finite value of an integer, of `float` or `double`, or of a duration or time point of `std::chrono`.
template <class T>
inline constexpr T largest_value = T(largest_value<typename T::duration>);
template <class T>
  requires(
              requires { typename T::rep; } && !requires { typename T::clock; })
inline constexpr T largest_value<T> = T(largest_value<typename T::rep>);
template <std::unsigned_integral T>
inline constexpr T largest_value<T> = static_cast<T>(-1);
template <std::signed_integral T>
inline constexpr T largest_value<T> = static_cast<T>(largest_value<std::make_unsigned_t<T>> / 2);
template <>
inline constexpr float largest_value<float> = FLT_MAX;
template <>
inline constexpr double largest_value<double> = DBL_MAX;

}  // namespace belay::inline BELAY_ABI
