// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Cross-entropy of next-token logits. Losses are summed in double, row by row in order. The caller gives the scale of
// the gradient: 1 where gradient buckets divide by the targets of the whole batch later.
#pragma once

#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "belay/core/view.hpp"
#include "model/arithmetic.hpp"
#include "model/matrix.hpp"

namespace model {

/// A target that does not count: the last position of a sequence, padding.
inline constexpr std::int32_t ignored = -1;

/// How many targets count.
[[nodiscard]] inline std::size_t target_count(view<const std::int32_t, 2> targets) {
  std::size_t count = 0;
  for (std::int32_t target : targets.flat()) count += target == ignored ? 0U : 1U;
  return count;
}

/// Returns the sum of the losses over the targets that count, and writes `gradient` = scale * (softmax - one-hot), zero
/// in ignored rows. `logits` and `gradient` [sequences, length, vocabulary] may be the same memory. Where `gradient`
/// has no memory, only the loss is computed. Called inside of `run`.
template <class T>
[[nodiscard]] double cross_entropy(view<const T, 3> logits, view<const std::int32_t, 2> targets, double scale,
                                   view<T, 3> gradient) {
  const std::size_t vocabulary = logits.extent(2);
  double loss = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const T* row = logits.data() + i * vocabulary;
    T* drow = gradient.data() == nullptr ? nullptr : gradient.data() + i * vocabulary;
    const std::int32_t target = targets.data()[i];
    if (target == ignored) {
      if (drow != nullptr) {
        for (std::size_t j = 0; j < vocabulary; ++j) drow[j] = T(0);
      }
      continue;
    }
    assert(target >= 0 && static_cast<std::size_t>(target) < vocabulary);
    const auto chosen = static_cast<std::size_t>(target);
    const T largest = largest_of(row, vocabulary);
    const T chosen_logit = row[chosen];
    const T sum = sum_over<T>(vocabulary, [=](auto at) {
      const lanes<T> weight = at.only_valid(exponential(at.load(row) - largest));
      if (drow != nullptr) at.store(drow, weight);
      return weight;
    });
    loss += std::log(static_cast<double>(sum)) + (static_cast<double>(largest) - static_cast<double>(chosen_logit));
    if (drow != nullptr) {
      const T factor = static_cast<T>(scale / static_cast<double>(sum));
      for_lanes<T>(vocabulary, [=](auto at) { at.store(drow, at.load(drow) * factor); });
      drow[chosen] -= static_cast<T>(scale);
    }
  }
  return loss;
}

/// The sum of the losses alone.
template <class T>
[[nodiscard]] double cross_entropy(view<const T, 3> logits, view<const std::int32_t, 2> targets) {
  return cross_entropy<T>(logits, targets, 0, view<T, 3>{});
}

}  // namespace model
