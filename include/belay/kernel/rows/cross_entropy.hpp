// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Cross-entropy of a row of logits and a target: log(sum of e^x) - x[target], and its gradient, softmax - one-hot.
// Logits of a narrower format are computed with as numbers; their gradient is rounded once.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/rows/softmax.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// A target that does not count: the last position of a sequence, padding.
inline constexpr std::int32_t ignored_target = -1;

/// The term e^(x[i] - largest).
template <stored_real T>
struct exponential_of {
  const T* x;
  compute_type_t<T> largest;
  BELAY_HD constexpr compute_type_t<T> operator()(std::size_t i) const noexcept {
    return exponential(widened(x[i]) - largest);
  }
};

/// out[i] = factor * e^(x[i] - largest), rounded; `out` may be `x`.
template <stored_real T>
struct rounded_exponential {
  exponential_of<T> term;
  T* out;
  compute_type_t<T> factor;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = static_cast<T>(factor * term(i)); }
};

/// losses[r] = the cross-entropy of row r, 0 where its target is ignored. Unless it is null, `gradient` gets scale *
/// (softmax - one-hot), zeros where the target is ignored; it may be `logits`. Every other target is below
/// `vocabulary`; with `found`, one that is not is noted there and does not count.
template <stored_real T>
struct cross_entropy_rows {
  const T* logits;
  const std::int32_t* targets;
  double* losses;
  T* gradient;
  std::size_t vocabulary;
  double scale = 1;
  findings_note found = {};

  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t row) const noexcept {
    const double loss = row_loss(team, row);
    if (team.lane == 0) losses[row] = loss;
  }

  /// The cross-entropy of `row`, 0 where its target is ignored. The row's gradient is written unless `gradient` is
  /// null; `losses` is not.
  template <team Team>
  [[nodiscard]] BELAY_HD double row_loss(const Team& team, std::size_t row) const noexcept {
    using number = compute_type_t<T>;
    const T* const x = logits + row * vocabulary;
    T* const dx = gradient == nullptr ? nullptr : gradient + row * vocabulary;
    const std::int32_t target = targets[row];
    if (target == ignored_target || !is_class(team, target, row)) {
      if (dx != nullptr) for_each_index(team, vocabulary, fill<T>{dx, static_cast<T>(number(0))});
      return 0;
    }
    const auto chosen = static_cast<std::size_t>(target);
    const number chosen_logit = widened(x[chosen]);
    const number largest = maximum_of(team, x, vocabulary);
    number sum = 0;
    if (!real<T> || dx == nullptr) sum = sum_in_lanes<number>(team, exponential_of<T>{x, largest}, vocabulary);
    if (dx == nullptr) {
      // The loss alone.
    } else if constexpr (!real<T>) {
      const auto factor = static_cast<number>(scale / static_cast<double>(sum));
      for_each_index(team, vocabulary, rounded_exponential<T>{{x, largest}, dx, factor});
      if (team.lane == 0)
        dx[chosen] = static_cast<T>(factor * exponential(chosen_logit - largest) - static_cast<number>(scale));
    } else {
      for_each_index(team, vocabulary, shifted_exponential<T>{x, dx, largest, T(1)});
      sum = row_sum(team, dx, vocabulary);
      for_each_index(team, vocabulary, kernel::scale<T>{static_cast<T>(scale / static_cast<double>(sum)), dx});
      if (team.lane == 0) dx[chosen] -= static_cast<T>(scale);
    }
    return logarithm(static_cast<double>(sum)) + (static_cast<double>(largest) - static_cast<double>(chosen_logit));
  }

 private:
  template <team Team>
  [[nodiscard]] BELAY_HD bool is_class(const Team& team, std::int32_t target, std::size_t row) const noexcept {
    if (!found || static_cast<std::size_t>(target) < vocabulary) return true;
    if (team.lane == 0) static_cast<void>(found.below(target, vocabulary, row));
    return false;
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
