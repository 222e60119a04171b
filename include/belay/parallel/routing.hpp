// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which experts a token visits, and with which weights. A routing is plain data. A recompute must send every token
// where the forward sent it, although its logits are rounded differently, so the choices are remembered and only the
// probabilities are computed again. The gradient flows through the weights of the chosen experts and, for the
// load-balancing term, through the mean probabilities. The selections have no gradient.
//
//   const auto routed = belay::route<float>(frame, logits, 2);  // top 2
//   ...
//   belay::route_backward(frame, routed, dweights, balance_scale, dlogits);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/math.hpp"
#include "belay/step/frame.hpp"

namespace belay::inline BELAY_ABI {

/// The result of `route`, which an expert exchange and `route_backward` read. The memory is that of the invocation. In
/// a rehearsal nothing is written to it.
template <class T>
struct routing {
  std::size_t rows = 0;                 // tokens of this rank; may be 0
  std::size_t experts = 0;              // of all ranks
  std::size_t k = 0;                    // experts that a token visits
  view<std::int32_t, 2> choices;        // [rows, k], best first
  view<T, 2> weights;                   // [rows, k], each row sums to 1
  view<T, 2> probabilities;             // [rows, experts], softmax over all experts
  view<std::int64_t, 1> counts;         // [experts], selections by this rank's rows
  view<std::int64_t, 1> global_counts;  // [experts], selections by all ranks; filled by dispatch
};

/// Softmax of one row, then the k largest probabilities (of equal ones the lower index), or the remembered choices
/// where `replay` is set. Weights are the chosen probabilities divided by their sum.
template <class T>
struct route_row {
  /// Logits [rows, experts] of the router; choices and weights [rows, k] and probabilities [rows, experts] to write;
  /// with `replay` the choices are read.
  const T* logits;
  std::int32_t* choices;
  T* weights;
  T* probabilities;
  std::size_t experts;
  std::size_t k;
  int replay;

  /// One token: the k most probable experts, the lower number first where two are equal.
  BELAY_HD void operator()(std::size_t row) const {
    const T* logit = logits + row * experts;
    T* probability = probabilities + row * experts;
    std::int32_t* choice = choices + row * k;
    T* weight = weights + row * k;
    T largest = logit[0];
    for (std::size_t e = 1; e < experts; ++e) largest = logit[e] > largest ? logit[e] : largest;
    T total = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      probability[e] = kernel::exponential(logit[e] - largest);
      total += probability[e];
    }
    for (std::size_t e = 0; e < experts; ++e) probability[e] /= total;
    if (replay == 0) choose(probability, choice);
    T chosen = 0;
    for (std::size_t j = 0; j < k; ++j) chosen += probability[choice[j]];
    for (std::size_t j = 0; j < k; ++j) weight[j] = probability[choice[j]] / chosen;
  }

 private:
  // One pass that keeps the best so far in order. The result is always k different experts in range, also where
  // probabilities are NaN: a bad number must never become a bad address.
  BELAY_HD void choose(const T* probability, std::int32_t* choice) const {
    for (std::size_t e = 0; e < experts; ++e) {
      std::size_t place = e < k ? e : k;
      while (place > 0 && probability[e] > probability[choice[place - 1]]) --place;
      if (place == k) continue;
      for (std::size_t j = e < k ? e : k - 1; j > place; --j) choice[j] = choice[j - 1];
      choice[place] = static_cast<std::int32_t>(e);
    }
  }
};

/// How often each expert was chosen: a kernel of one index, after counts have been set to 0.
struct selection_counts {
  /// Adds up how often each expert was chosen.
  const std::int32_t* choices;
  std::size_t count;
  std::int64_t* counts;
  BELAY_HD void operator()(std::size_t) const {
    for (std::size_t i = 0; i < count; ++i) ++counts[choices[i]];
  }
};

/// One row of the logits' gradient: through the normalised weights of the chosen experts and, times `balance_scale`,
/// through the mean probability of every expert.
template <class T>
struct route_gradient_row {
  /// The choices, weights and probabilities that `route_row` has written, the selections of each expert by all ranks,
  /// the gradient of the weights, and the gradient of the logits to write.
  const std::int32_t* choices;
  const T* weights;
  const T* probabilities;
  const std::int64_t* global_counts;
  const T* dweights;
  T* dlogits;
  std::size_t experts;
  std::size_t k;
  T balance_scale;

  /// One token.
  BELAY_HD void operator()(std::size_t row) const {
    std::int64_t selections = 0;
    for (std::size_t e = 0; e < experts; ++e) selections += global_counts[e];
    const T global_rows = static_cast<T>(selections) / static_cast<T>(k);
    const T per_selection =
        selections > 0 ? balance_scale * static_cast<T>(experts) / (global_rows * global_rows) : T(0);
    const T* probability = probabilities + row * experts;
    const std::int32_t* choice = choices + row * k;
    const T* weight = weights + row * k;
    const T* dweight = dweights + row * k;
    T* dlogit = dlogits + row * experts;
    T chosen = 0;
    T pull = 0;
    for (std::size_t j = 0; j < k; ++j) {
      chosen += probability[choice[j]];
      pull += dweight[j] * weight[j];
    }
    for (std::size_t e = 0; e < experts; ++e) dlogit[e] = per_selection * static_cast<T>(global_counts[e]);
    for (std::size_t j = 0; j < k; ++j) dlogit[choice[j]] += (dweight[j] - pull) / chosen;
    T inner = 0;
    for (std::size_t e = 0; e < experts; ++e) inner += dlogit[e] * probability[e];
    for (std::size_t e = 0; e < experts; ++e) dlogit[e] = probability[e] * (dlogit[e] - inner);
  }
};

/// Routes every row of `logits` [rows, experts] to the `k` most probable experts. There may be no rows. Choices are
/// remembered from a forward to its recompute; weights and probabilities are kept until the invocation's backward.
/// Throws `usage_error` unless 1 <= k <= experts.
template <class T, class Frame>
[[nodiscard]] routing<T> route(Frame& frame, view<const std::type_identity_t<T>, 2> logits, std::size_t k,
                               where at = where::current()) {
  const std::size_t rows = logits.extent(0);
  const std::size_t experts = logits.extent(1);
  if (k < 1 || k > experts) {
    throw usage_error("a token cannot visit " + std::to_string(k) + " of " + std::to_string(experts) + " experts", at);
  }
  routing<T> result;
  result.rows = rows;
  result.experts = experts;
  result.k = k;
  result.choices = remember<std::int32_t>(frame, {rows, k});
  result.weights = keep<T>(frame, {rows, k});
  result.probabilities = keep<T>(frame, {rows, experts});
  result.counts = keep<std::int64_t>(frame, {experts});
  result.global_counts = keep<std::int64_t>(frame, {experts});
  const int replay = frame.replaying() ? 1 : 0;
  frame.each(rows, route_row<T>{logits.data(), result.choices.data(), result.weights.data(),
                                result.probabilities.data(), experts, k, replay});
  frame.each(experts, kernel::fill<std::int64_t>{result.global_counts.data(), 0});
  if constexpr (sorting_kit<std::remove_cvref_t<decltype(frame.kit())>>) {
    frame.kit().histogram({result.choices.data(), {rows * k}}, result.counts);
  } else {
    frame.each(experts, kernel::fill<std::int64_t>{result.counts.data(), 0});
    frame.each(1, selection_counts{result.choices.data(), rows * k, result.counts.data()});
  }
  return result;
}

/// Writes `dlogits` [rows, experts] from `dweights` [rows, k]. The load-balancing term of one layer and micro-batch is
/// experts * sum_e f_e P_e, where f_e = selections of e by all ranks / rows of all ranks, and P_e = mean probability of
/// e over those rows. Its gradient, through P_e alone, is multiplied by `balance_scale`: the product of coefficient,
/// share of the layer and of the micro-batch, and gradient divisor.
template <class T, class Frame>
void route_backward(Frame& frame, const routing<T>& routed, view<const std::type_identity_t<T>, 2> dweights,
                    std::type_identity_t<T> balance_scale, view<std::type_identity_t<T>, 2> dlogits,
                    where at = where::current()) {
  if (dweights.extent(0) != routed.rows || dweights.extent(1) != routed.k || dlogits.extent(0) != routed.rows ||
      dlogits.extent(1) != routed.experts) {
    throw usage_error("route_backward: dweights is [rows, k] and dlogits [rows, experts] of the routing", at);
  }
  frame.each(routed.rows,
             route_gradient_row<T>{routed.choices.data(), routed.weights.data(), routed.probabilities.data(),
                                   routed.global_counts.data(), dweights.data(), dlogits.data(), routed.experts,
                                   routed.k, balance_scale});
}

/// The load-balancing term of one layer and micro-batch, from its selections and the sums of its probabilities over the
/// same rows: k where the load is balanced, 0 without rows.
[[nodiscard]] inline double balance_loss(const std::int64_t* selections, const double* probability_sums,
                                         std::size_t experts, double rows) noexcept {
  if (!(rows > 0)) return 0;
  double total = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    total += (static_cast<double>(selections[e]) / rows) * (probability_sums[e] / rows);
  }
  return static_cast<double>(experts) * total;
}

}  // namespace belay::inline BELAY_ABI
