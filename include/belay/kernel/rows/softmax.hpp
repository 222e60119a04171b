// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Softmax of a row and its derivative, plain and causal. The largest element is subtracted first, so that no finite
// input overflows. A row of the causal form is one query's attention scores: it scales them, and writes zeros for the
// keys that come later, so that a plain matrix product can follow.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// The numbers of a row that a loss needs beside its softmax: log(sum of e^x) = `largest` + log(`sum`).
template <real T>
struct softmax_parts {
  T largest;  // of the scaled inputs
  T sum;      // of e^(scaled input - largest)
};

/// out[i] = e^(scale * (in[i] - largest)).
template <real T>
struct shifted_exponential {
  const T* in;
  T* out;
  T largest;
  T scale;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = exponential((in[i] - largest) * scale); }
};

/// ds[i] = scale * p[i] * (dp[i] - mean), where mean is the inner product of p and dp.
template <real T>
struct softmax_derivative {
  const T* p;
  const T* dp;
  T* ds;
  T mean;
  T scale;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { ds[i] = scale * p[i] * (dp[i] - mean); }
};

/// out = softmax(scale * in) for a row of `width`, with scale > 0. `out` may be `in`. A NaN or +infinity makes the
/// whole row NaN; -infinity has probability 0.
template <team Team, real T>
BELAY_HD constexpr softmax_parts<T> softmax_row(const Team& team, const T* in, T* out, std::size_t width,
                                                T scale = T(1)) noexcept {
  const T largest = maximum_of(team, in, width);
  for_each_index(team, width, shifted_exponential<T>{in, out, largest, scale});
  const T total = row_sum(team, out, width);
  for_each_index(team, width, kernel::scale<T>{T(1) / total, out});
  return {largest * scale, total};
}
template <real T>
BELAY_HD constexpr softmax_parts<T> softmax_row(const T* in, T* out, std::size_t width, T scale = T(1)) noexcept {
  return softmax_row(solo{}, in, out, width, scale);
}

/// The gradient of the unscaled inputs from the probabilities and their gradient. `ds` may be `dp`.
template <team Team, real T>
BELAY_HD constexpr void softmax_row_backward(const Team& team, const T* p, const T* dp, T* ds, std::size_t width,
                                             T scale = T(1)) noexcept {
  for_each_index(team, width, softmax_derivative<T>{p, dp, ds, row_dot(team, p, dp, width), scale});
}

/// Softmax of every row; a row is one index.
template <real T>
struct softmax_rows {
  const T* in;
  T* out;
  std::size_t width;
  T scale = T(1);
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    softmax_row(team, in + row * width, out + row * width, width, scale);
  }
};

template <real T>
struct softmax_rows_backward {
  const T* p;
  const T* dp;
  T* ds;
  std::size_t width;
  T scale = T(1);
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    softmax_row_backward(team, p + row * width, dp + row * width, ds + row * width, width, scale);
  }
};

/// Softmax of attention scores [..., length, length]. Row r is query r % length, which attends to keys 0 to r % length;
/// the others get 0, whatever the scores hold there. `out` may be `in`. For a block of queries `length` is the number
/// of keys that the last of them sees, and `first` the query of row 0. `log_sums`, unless null, gets log(sum of e^x) of
/// each row, from which `attention_rows_backward` makes the probabilities again.
template <real T>
struct causal_softmax_rows {
  const T* in;
  T* out;
  std::size_t length;
  T scale = T(1);
  std::size_t first = 0;
  T* log_sums = nullptr;
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    const std::size_t seen = (first + row) % length + 1;
    const std::size_t some = whole_vectors(seen, length);
    T* const to = out + row * length;
    const T largest = maximum_of(team, in + row * length, seen);
    for_each_index(team, some, shifted_exponential<T>{in + row * length, to, largest, scale});
    for_each_index(team, length - seen, fill<T>{to + seen, T(0)});
    const T total = row_sum(team, to, some);
    for_each_index(team, some, kernel::scale<T>{T(1) / total, to});
    if (log_sums != nullptr && team.lane == 0) log_sums[row] = largest * scale + logarithm(total);
  }
};

/// The gradient of the unscaled scores; 0 for later keys. `ds` may be `dp`.
template <real T>
struct causal_softmax_rows_backward {
  const T* p;
  const T* dp;
  T* ds;
  std::size_t length;
  T scale = T(1);
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    const std::size_t seen = row % length + 1;
    softmax_row_backward(team, p + row * length, dp + row * length, ds + row * length, seen, scale);
    for_each_index(team, length - seen, fill<T>{ds + row * length + seen, T(0)});
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
