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

/// The pairs of all heads of a row, which follow each other: of a head as many indices as it has pairs.
template <stored_real T, stored_real Out = T>
struct rotated_pairs {
  rotated_pair<T, Out> first;  // of the first head
  std::size_t head_size;

  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { of_head(i / half())(i % half()); }

  static constexpr std::size_t indices_of_pack = pack_size<T, Out, compute_type_t<T>>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept {
    return head_size % (2 * indices_of_pack) == 0 &&
           are_packs<indices_of_pack>(first.low, first.to_low, first.cosine, first.sine);
  }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const rotated_pair<T, Out> pair = of_head(i / half());
    const std::size_t j = i % half();
    const auto low = load_pack<indices_of_pack>(pair.low, j), high = load_pack<indices_of_pack>(pair.high, j);
    const auto cosine = load_pack<indices_of_pack>(pair.cosine, j), sine = load_pack<indices_of_pack>(pair.sine, j);
    pack_of<Out, indices_of_pack> to_low, to_high;
    run_pack<indices_of_pack>(
        rotated_pair<T, Out>{low.of, high.of, to_low.of, to_high.of, cosine.of, sine.of, pair.sign});
    store_global_pack(to_low, pair.to_low, j);
    store_global_pack(to_high, pair.to_high, j);
  }

  [[nodiscard]] BELAY_HD constexpr std::size_t half() const noexcept { return head_size / 2; }
  [[nodiscard]] BELAY_HD constexpr rotated_pair<T, Out> of_head(std::size_t head) const noexcept {
    const std::size_t at = head * head_size;
    return {first.low + at, first.high + at, first.to_low + at, first.to_high + at,
            first.cosine,   first.sine,      first.sign};
  }
};

/// Rotates the pairs of `heads` heads of a row.
template <team Team, stored_real T, stored_real Out>
BELAY_HD constexpr void rotate_row(const Team& team, std::size_t heads, const rotated_pairs<T, Out>& pairs) noexcept {
  if constexpr (Team::lanes == 1) {  // so that no index is divided
    for (std::size_t head = 0; head < heads; ++head) for_each_index(pairs.half(), pairs.of_head(head));
  } else {
    for_each_pack(team, heads * pairs.half(), pairs);
  }
}

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
    T* const low = x + token * stride;
    rotate_row(team, heads,
               rotated_pairs<T>{{low, low + half, low, low + half, cosine + entry, sine + entry, sign}, head_size});
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
    rotate_row(
        team, heads,
        rotated_pairs<T, Out>{{from, from + half, to, to + half, cosine + entry, sine + entry, sign}, head_size});
    const std::size_t rotated = heads * head_size;
    for_each_pack(team, width - rotated, copy<T, Out>{from + rotated, to + rotated});
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
