// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Causal softmax of attention's scores, and a softmax's derivative. The largest element is subtracted first, so that no
// finite input overflows. A row is one query's scores: it scales them, and writes zeros for the keys that come later,
// so that a plain matrix product can follow.
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

}  // namespace belay::inline BELAY_ABI::kernel
