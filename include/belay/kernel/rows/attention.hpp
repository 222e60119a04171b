// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a causal attention does between its products in the backward, row by row of a block of queries. Probabilities
// are made again from the scores and one number a row, the logarithm of the softmax's sum.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/rows/softmax.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// `scores` [rows, length] become probabilities, `dscores` (the gradient of these) becomes the gradient of the scores.
/// Row r is query `first` + r; later keys get 0. `out` and `dout` are the rows of the attention's output and of its
/// gradient: their inner product is that of the probabilities and their gradient. A narrower `out` is not read: its
/// rounding would be most of the error of what cancels here.
template <real T, stored_real Row = T>
struct attention_rows_backward {
  T* scores;
  T* dscores;
  const T* log_sums;
  const Row* out;
  const T* dout;
  std::size_t out_stride;
  std::size_t dout_stride;
  std::size_t head_size;
  std::size_t length;
  std::size_t first;

  struct probability {
    T* score;
    T log_sum;
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept { score[i] = exponential(score[i] - log_sum); }
  };
  struct element {
    T* score;
    T* dscore;
    T log_sum;
    T mean;
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
      const T p = exponential(score[i] - log_sum);
      score[i] = p;
      dscore[i] = p * (dscore[i] - mean);
    }
  };

  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    T* const score = scores + row * length;
    T* const dscore = dscores + row * length;
    const std::size_t seen = first + row + 1;
    const std::size_t some = whole_vectors(seen, length);
    if constexpr (real<Row>) {
      const T mean = row_dot(team, out + row * out_stride, dout + row * dout_stride, head_size);
      for_each_index(team, some, element{score, dscore, log_sums[row], mean});
    } else {
      for_each_index(team, some, probability{score, log_sums[row]});
      const T mean = row_dot(team, score, dscore, seen);
      for_each_index(team, some, softmax_derivative<T>{score, dscore, dscore, mean, T(1)});
    }
    for_each_index(team, length - seen, fill<T>{score + seen, T(0)});
    for_each_index(team, length - seen, fill<T>{dscore + seen, T(0)});
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
