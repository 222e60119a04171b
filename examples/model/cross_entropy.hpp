// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Cross-entropy of next-token logits. Losses are summed in double, row by row in order. The caller gives the scale of
// the gradient: 1 where gradient buckets divide by the targets of the whole batch later.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "belay/core/view.hpp"
#include "belay/kernel/rows.hpp"
#include "model/shapes.hpp"

namespace model {

/// A target that does not count: the last position of a sequence, padding.
inline constexpr std::int32_t ignored = kernel::ignored_target;

/// How many targets count.
[[nodiscard]] inline std::size_t target_count(view<const std::int32_t, 2> targets) {
  std::size_t count = 0;
  for (std::int32_t target : targets.flat()) count += target == ignored ? 0U : 1U;
  return count;
}

/// Returns the sum of the losses over the targets that count, and writes `gradient` = scale * (softmax - one-hot), zero
/// in ignored rows. `logits` and `gradient` [sequences, length, vocabulary] may be the same memory. Where `gradient`
/// has no memory, only the loss is computed. The result is needed at once, so it is called on the compute stream.
template <class T>
[[nodiscard]] double cross_entropy(view<const T, 3> logits, view<const std::int32_t, 2> targets, double scale,
                                   view<T, 3> gradient) {
  const kernel::cross_entropy_rows<T> rows{logits.data(),   targets.data(),   nullptr,
                                           gradient.data(), logits.extent(2), scale};
  double loss = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    assert(targets.data()[i] == ignored || static_cast<std::size_t>(targets.data()[i]) < rows.vocabulary);
    loss += rows.row_loss(kernel::solo{}, i);
  }
  return loss;
}

/// The sum of the losses alone.
template <class T>
[[nodiscard]] double cross_entropy(view<const T, 3> logits, view<const std::int32_t, 2> targets) {
  return cross_entropy<T>(logits, targets, 0, view<T, 3>{});
}

}  // namespace model
