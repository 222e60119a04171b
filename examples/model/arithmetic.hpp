// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Loops over rows, written with the machine's vectors: compilers may not reorder a sum, and do not vectorise loops with
// an exponential. A cursor walks a row vector by vector. The last vector may hold fewer elements, and reads zeros
// beyond them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace model {

#if defined(__AVX512F__)
inline constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX__)
inline constexpr std::size_t vector_bytes = 32;
#else
inline constexpr std::size_t vector_bytes = 16;
#endif

template <class T>
struct lanes_type {
  static constexpr std::size_t count = vector_bytes / sizeof(T);
  using type [[gnu::vector_size(vector_bytes)]] = T;
};
template <class T>
using lanes = typename lanes_type<T>::type;
template <class T>
inline constexpr std::size_t lane_count = lanes_type<T>::count;

/// A whole vector of a row.
template <class T>
struct whole_cursor {
  std::size_t at;
  [[nodiscard]] lanes<T> load(const T* row) const {
    lanes<T> values;
    std::memcpy(&values, row + at, sizeof values);
    return values;
  }
  void store(T* row, const lanes<T>& values) const { std::memcpy(row + at, &values, sizeof values); }
  [[nodiscard]] lanes<T> only_valid(const lanes<T>& values) const { return values; }
};

/// The last elements of a row whose length is no multiple of the vector's.
template <class T>
struct part_cursor {
  std::size_t at;
  std::size_t count;
  [[nodiscard]] lanes<T> load(const T* row) const {
    lanes<T> values = {};
    std::memcpy(&values, row + at, count * sizeof(T));
    return values;
  }
  void store(T* row, const lanes<T>& values) const { std::memcpy(row + at, &values, count * sizeof(T)); }
  /// The values with zeros beyond the row's end.
  [[nodiscard]] lanes<T> only_valid(const lanes<T>& values) const {
    lanes<T> kept = {};
    std::memcpy(&kept, &values, count * sizeof(T));
    return kept;
  }
};

/// Calls `body(cursor)` for every vector of a row of `count` elements.
template <class T, class Body>
void for_lanes(std::size_t count, Body body) {
  std::size_t i = 0;
  for (; i + lane_count<T> <= count; i += lane_count<T>) body(whole_cursor<T>{i});
  if (i < count) body(part_cursor<T>{i, count - i});
}

template <class T>
[[nodiscard]] inline T sum_of_lanes(lanes<T> values) {
  T parts[lane_count<T>];
  std::memcpy(parts, &values, sizeof parts);
  for (std::size_t half = lane_count<T> / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) parts[j] += parts[j + half];
  }
  return parts[0];
}

/// The sum of `term(cursor)` over a row; terms beyond the row's end must be zero.
template <class T, class Term>
[[nodiscard]] T sum_over(std::size_t count, Term term) {
  lanes<T> sum = {};
  for_lanes<T>(count, [&](auto at) { sum += term(at); });
  return sum_of_lanes<T>(sum);
}

/// The largest of `count` >= 1 elements.
template <class T>
[[nodiscard]] T largest_of(const T* row, std::size_t count) {
  constexpr std::size_t width = lane_count<T>;
  T largest = row[0];
  if (count < width) {
    for (std::size_t i = 1; i < count; ++i) largest = row[i] > largest ? row[i] : largest;
    return largest;
  }
  // The last vector overlaps the one before it, which does not change a maximum.
  lanes<T> best = whole_cursor<T>{count - width}.load(row);
  for (std::size_t i = 0; i + width <= count; i += width) {
    const lanes<T> next = whole_cursor<T>{i}.load(row);
    best = next > best ? next : best;
  }
  T parts[width];
  std::memcpy(parts, &best, sizeof parts);
  for (T part : parts) largest = part > largest ? part : largest;
  return largest;
}

/// e^x to about 2 units in the last place, without a branch or a call; below -87.3 it stays near 1e-38
/// instead of becoming denormal, above 88.3 it saturates.
[[nodiscard]] inline lanes<float> exponential(lanes<float> x) {
  using integers [[gnu::vector_size(vector_bytes)]] = std::int32_t;
  const lanes<float> low = lanes<float>{} - 87.3F;
  const lanes<float> high = lanes<float>{} + 88.3F;
  x = x < low ? low : x;
  x = x > high ? high : x;
  constexpr float to_integer = 12582912.0F;  // 1.5 * 2^23: adding it rounds to the nearest integer
  const lanes<float> shifted = x * 1.44269504088896341F + to_integer;
  const lanes<float> power = shifted - to_integer;
  const lanes<float> r = (x - power * 0.693359375F) + power * 2.12194440e-4F;
  lanes<float> p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = (p * r * r + r) + 1.0F;
  // The low bits of `shifted` are the integer. Moved to the exponent's bits they give its power of two.
  integers bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127) << 23;
  lanes<float> scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

[[nodiscard]] inline lanes<double> exponential(lanes<double> x) {
  for (std::size_t j = 0; j < lane_count<double>; ++j) x[j] = std::exp(x[j]);
  return x;
}

/// The logistic function of every lane.
template <class T>
[[nodiscard]] lanes<T> logistic(lanes<T> x) {
  return T(1) / (T(1) + exponential(-x));
}

/// to += from, element by element.
template <class T>
void add(T* to, const T* from, std::size_t count) {
  for_lanes<T>(count, [=](auto at) { at.store(to, at.load(to) + at.load(from)); });
}

}  // namespace model
