// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rotary positions in the half-split layout: element j of a head is rotated with element j + d/2 by the angle position
// * theta^(-2j/d). A rotation is orthogonal, so the backward is its transpose, the rotation by the opposite angle.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

enum class rotation { forward, transposed };

/// Fills cosine and sine [length, head_size / 2] for positions 0 to length - 1, computed in double.
template <real T>
void fill_rotary_table(T* cosine, T* sine, std::size_t length, std::size_t head_size, double theta) noexcept {
  const std::size_t half = head_size / 2;
  for (std::size_t j = 0; j < half; ++j) {
    const double frequency = __builtin_pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_size));
    for (std::size_t position = 0; position < length; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      cosine[position * half + j] = static_cast<T>(__builtin_cos(angle));
      sine[position * half + j] = static_cast<T>(__builtin_sin(angle));
    }
  }
}

/// Element j and element j + d/2 of a head, rotated; they may be written where they were read.
template <stored_real T, stored_real Out = T>
struct rotated_pair {
  using number = compute_type_t<T>;

  const T* low;
  const T* high;
  Out* to_low;
  Out* to_high;
  const number* cosine;
  const number* sine;
  number sign;
  BELAY_HD constexpr void operator()(std::size_t j) const noexcept {
    const number a = widened(low[j]);
    const number b = widened(high[j]);
    const number s = sign * sine[j];
    to_low[j] = static_cast<Out>(a * cosine[j] - b * s);
    to_high[j] = static_cast<Out>(b * cosine[j] + a * s);
  }
};

/// Rotates the `heads` heads of a token in place. A kernel index is a token: it lies at x + token * stride, and its
/// position is token % length. `stride` is in elements, so that x may be a part of a wider row.
template <stored_real T>
struct rotate_heads {
  using number = compute_type_t<T>;

  T* x;
  const number* cosine;
  const number* sine;
  std::size_t stride;
  std::size_t length;
  std::size_t heads;
  std::size_t head_size;
  rotation direction = rotation::forward;

  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t token) const noexcept {
    const std::size_t half = head_size / 2;
    const std::size_t entry = (token % length) * half;
    const number sign = direction == rotation::forward ? number(1) : number(-1);
    for (std::size_t head = 0; head < heads; ++head) {
      T* low = x + token * stride + head * head_size;
      T* high = low + half;
      for_each_index(team, half, rotated_pair<T>{low, high, low, high, cosine + entry, sine + entry, sign});
    }
  }
};

/// The rows of `in`, [tokens, width], in the type of `out`, with their first `heads` heads rotated: computed with as
/// numbers and rounded once.
template <stored_real T, stored_real Out>
struct rotated_rows {
  using number = compute_type_t<T>;

  const T* in;
  Out* out;
  const number* cosine;
  const number* sine;
  std::size_t width;
  std::size_t length;
  std::size_t heads;
  std::size_t head_size;
  rotation direction = rotation::forward;

  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t token) const noexcept {
    const std::size_t half = head_size / 2;
    const std::size_t entry = (token % length) * half;
    const number sign = direction == rotation::forward ? number(1) : number(-1);
    const T* const from = in + token * width;
    Out* const to = out + token * width;
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t low = head * head_size;
      const std::size_t high = low + half;
      for_each_index(
          team, half,
          rotated_pair<T, Out>{from + low, from + high, to + low, to + high, cosine + entry, sine + entry, sign});
    }
    const std::size_t rotated = heads * head_size;
    for_each_pack(team, width - rotated, copy<T, Out>{from + rotated, to + rotated});
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
