// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Causal softmax of attention's scores, and a softmax's derivative. The largest element is subtracted first, so that no
// finite input overflows. A row is one query's scores: it scales them, and writes zeros for the keys that come later,
// so that a plain matrix product can follow.
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

  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(in, out); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const auto from = load_pack<indices_of_pack>(in, i);
    pack_of<T, indices_of_pack> to;
    run_pack<indices_of_pack>(shifted_exponential{from.of, to.of, largest, scale});
    store_pack(to, out, i);
  }
};

/// ds[i] = scale * p[i] * (dp[i] - mean), where mean is the inner product of p and dp.
template <real T, stored_real Out = T>
struct softmax_derivative {
  const T* p;
  const T* dp;
  Out* ds;
  T mean;
  T scale;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    ds[i] = static_cast<Out>(scale * p[i] * (dp[i] - mean));
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

/// `scores` [rows, length] become probabilities, `dscores` (the gradient of these) becomes the gradient of the scores.
/// Row r is query `first` + r; later keys get 0. `out` and `dout` are the rows of the attention's output and of its
/// gradient: their inner product is that of the probabilities and their gradient. A narrower `out` is not read: its
/// rounding would be most of the error of what cancels here.
/// The step of a causal attention between its products in the backward, row by row of a block of queries. Probabilities
/// are made again from the scores and one number a row, the logarithm of the softmax's sum.
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

  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(x); }
  [[nodiscard]] BELAY_HD auto pack(std::size_t i) const noexcept {
    const auto own = load_pack<indices_of_pack>(x, i);
    return terms_of<compute_type_t<T>, indices_of_pack>(exponential_of{own.of, largest});
  }
};

/// out[i] = factor * e^(x[i] - largest), rounded; `out` may be `x`.
template <stored_real T>
struct rounded_exponential {
  exponential_of<T> term;
  T* out;
  compute_type_t<T> factor;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = static_cast<T>(factor * term(i)); }

  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(term.x, out); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const auto from = load_pack<indices_of_pack>(term.x, i);
    pack_of<T, indices_of_pack> to;
    run_pack<indices_of_pack>(rounded_exponential{{from.of, term.largest}, to.of, factor});
    store_pack(to, out, i);
  }
};

/// losses[r] = the cross-entropy of row r, log(sum of e^x) - x[target], 0 where its target is ignored. Logits of a
/// narrower format are computed with as numbers; their gradient is rounded once. Unless it is null, `gradient` gets
/// scale * (softmax - one-hot), zeros where the target is ignored; it may be `logits`. Every other target is below
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

  [[nodiscard]] constexpr std::size_t columns() const noexcept { return vocabulary; }
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
      if (dx != nullptr) for_each_pack(team, vocabulary, fill<T>{dx, static_cast<T>(number(0))});
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
      for_each_pack(team, vocabulary, rounded_exponential<T>{{x, largest}, dx, factor});
      if (team.lane == 0)
        dx[chosen] = static_cast<T>(factor * exponential(chosen_logit - largest) - static_cast<number>(scale));
    } else {
      for_each_pack(team, vocabulary, shifted_exponential<T>{x, dx, largest, T(1)});
      sum = row_sum(team, dx, vocabulary);
      for_each_pack(team, vocabulary, kernel::scale<T>{static_cast<T>(scale / static_cast<double>(sum)), dx});
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
