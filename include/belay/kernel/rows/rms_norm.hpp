// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// RMS norm of a row: y = weight * x / sqrt(mean(x^2) + epsilon). The forward keeps one number a row, the inverse root,
// and the backward reads it instead of computing it again.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/reduce.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// out row r = weight * in row r * inverse[r], where inverse[r] is written too. `out` may be `in`.
template <real T>
struct rms_norm_rows {
  const T* in;
  const T* weight;
  T* out;
  T* inverse;
  std::size_t width;
  T epsilon;

  struct element {
    const T* x;
    const T* weight;
    T* y;
    T inverse;
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept { y[i] = weight[i] * (x[i] * inverse); }
  };

  BELAY_HD constexpr void operator()(std::size_t row) const noexcept {
    const T* x = in + row * width;
    const T root = square_root(row_dot(x, x, width) / static_cast<T>(width) + epsilon);
    inverse[row] = T(1) / root;
    for_each_index(width, element{x, weight, out + row * width, inverse[row]});
  }
};

/// The gradient of the input, from the forward's input and `inverse`. `din` may be `dout`.
template <real T>
struct rms_norm_rows_backward {
  const T* in;
  const T* weight;
  const T* inverse;
  const T* dout;
  T* din;
  std::size_t width;

  // The derivative through the mean in the denominator: the sum over i of dy[i] weight[i] x[i].
  struct projection {
    const T* dy;
    const T* weight;
    const T* x;
    BELAY_HD constexpr T operator()(std::size_t i) const noexcept { return dy[i] * weight[i] * x[i]; }
  };
  struct element {
    const T* x;
    const T* weight;
    const T* dy;
    T* dx;
    T inverse;
    T through_mean;
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
      dx[i] = inverse * (weight[i] * dy[i]) - through_mean * x[i];
    }
  };

  BELAY_HD constexpr void operator()(std::size_t row) const noexcept {
    const T* x = in + row * width;
    const T* dy = dout + row * width;
    const T r = inverse[row];
    const T along = sum_in_lanes<T>(projection{dy, weight, x}, width) / static_cast<T>(width);
    for_each_index(width, element{x, weight, dy, din + row * width, r, r * r * r * along});
  }
};

/// dweight[i] += dy[i] * (x[i] * inverse), one row's part.
template <real T>
struct rms_norm_weight_part {
  const T* x;
  const T* dy;
  T* dweight;
  T inverse;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { dweight[i] += dy[i] * (x[i] * inverse); }
};

/// dweight[j] += the sum over rows of dout * in * inverse, in ascending row order, by one thread. It runs before
/// `rms_norm_rows_backward` where that overwrites `dout`.
template <real T>
BELAY_HD constexpr void add_rms_norm_weight_gradient(const T* in, const T* inverse, const T* dout, T* dweight,
                                                     std::size_t rows, std::size_t width) noexcept {
  for (std::size_t row = 0; row < rows; ++row) {
    for_each_index(width, rms_norm_weight_part<T>{in + row * width, dout + row * width, dweight, inverse[row]});
  }
}

}  // namespace belay::inline BELAY_ABI::kernel
