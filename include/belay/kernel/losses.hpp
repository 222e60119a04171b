// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Losses of a micro-batch as work that runs once, in the order of a stream: the sum is noted, its gradient written. One
// thread sums in the order of the elements, so that the sum has the same bits everywhere.
//
//   compute.run(belay::kernel::noted_squared_error<float>{output, target, gradient, count, 0, found});
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/rows.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// Notes the sum of (output - target)^2 over `samples`, and writes 2 (output - target) unless `gradient` is null.
template <stored_real T>
struct noted_squared_error {
  /// Output, targets, the gradient to write, elements, samples of the batch, and where the loss is added.
  const T* output;
  const compute_type_t<T>* target;
  T* gradient;
  std::size_t count;
  std::size_t samples;
  findings_note found;

  /// All elements, in order.
  BELAY_HD void operator()() const noexcept {
    double sum_of_squares = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto difference = widened(output[i]) - target[i];
      sum_of_squares += static_cast<double>(difference) * static_cast<double>(difference);
      if (gradient != nullptr) gradient[i] = static_cast<T>(2 * difference);
    }
    found.add_loss(sum_of_squares, samples);
  }
};

/// Notes the sum of the losses of `each` row, and over how many targets where it writes no gradient.
template <stored_real T>
struct noted_cross_entropy {
  /// The loss of each row, and how many there are.
  cross_entropy_rows<T> each;
  std::size_t rows;

  /// All rows, in order.
  BELAY_HD void operator()() const noexcept {
    double loss = 0;
    std::uint64_t targets = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      loss += each.row_loss(solo{}, row);
      targets += each.gradient == nullptr && each.targets[row] != ignored_target ? 1U : 0U;
    }
    each.found.add_loss(loss, targets);
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
