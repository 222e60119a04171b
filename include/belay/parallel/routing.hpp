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
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/rows.hpp"
#include "belay/kernel/team.hpp"
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
  /// Where not null, set to 0 by the team of the first row: the counts [experts] of all ranks, which a dispatch fills.
  std::int64_t* global_counts = nullptr;

  /// One token: the k most probable experts, the lower number first where two are equal.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t row) const {
    const T* const logit = logits + row * experts;
    T* const probability = probabilities + row * experts;
    std::int32_t* const choice = choices + row * k;
    const T largest = kernel::maximum_of(team, logit, experts);
    kernel::for_each_index(team, experts, kernel::shifted_exponential<T>{logit, probability, largest, T(1)});
    const T total = kernel::sum_in_order<T>(team, kernel::values_of<T, T>{probability}, experts);
    kernel::for_each_index(team, experts, share{probability, total});
    if (replay == 0) choose(team, probability, choice);
    T chosen = 0;
    for (std::size_t j = 0; j < k; ++j) chosen += probability[choice[j]];
    kernel::for_each_index(team, k, weight{probability, choice, chosen, weights + row * k});
    if (row == 0 && global_counts != nullptr)
      kernel::for_each_index(team, experts, kernel::fill<std::int64_t>{global_counts, 0});
  }

 private:
  struct share {
    T* x;
    T total;
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept { x[i] /= total; }
  };
  struct weight {
    const T* probability;
    const std::int32_t* choice;
    T chosen;
    T* out;
    BELAY_HD constexpr void operator()(std::size_t j) const noexcept { out[j] = probability[choice[j]] / chosen; }
  };

  // An expert with the bits of its probability, so that the order of candidates is total, also where probabilities are
  // NaN, which count as 0: a bad number must never become a bad address.
  struct candidate {
    std::conditional_t<std::is_same_v<T, float>, std::uint32_t, std::uint64_t> bits;
    std::int32_t expert;
    [[nodiscard]] BELAY_HD constexpr bool before(const candidate& other) const noexcept {
      return bits > other.bits || (bits == other.bits && expert < other.expert);
    }
  };
  [[nodiscard]] BELAY_HD static constexpr candidate candidate_of(const T& probability, std::size_t expert) noexcept {
    const auto bits = __builtin_bit_cast(decltype(candidate::bits), kernel::magnitude(probability));
    return {bits & ~kernel::mask_of_sign(infinity_bits<T> - bits), static_cast<std::int32_t>(expert)};
  }

  // Each choice is the first of the candidates that come after the one before.
  template <kernel::team Team>
  BELAY_HD void choose(const Team& team, const T* probability, std::int32_t* choice) const {
    candidate last = candidate_of(T(2), 0);  // before every expert
    for (std::size_t j = 0; j < k; ++j) {
      candidate best = candidate_of(T(0), experts);  // after every one
      for (std::size_t e = team.lane; e < experts; e += Team::lanes) {
        const candidate one = candidate_of(probability[e], e);
        if (last.before(one) && one.before(best)) best = one;
      }
      for (unsigned width = Team::lanes / 2; width > 0; width /= 2) {
        const unsigned from = (team.lane + width) % Team::lanes;
        const candidate other{team.from(from, best.bits), team.from(from, best.expert)};
        if (other.before(best)) best = other;
      }
      if (team.lane == 0) choice[j] = best.expert;
      last = best;
    }
    team.synchronize();
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
/// through the mean probability of every expert. Where `Out` is narrower, the gradient is rounded into `rounded` when
/// it is made, and `dlogits` is memory for numbers.
template <class T, class Out = T>
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
  Out* rounded = nullptr;

  /// One token.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t row) const {
    const auto selections = kernel::sum_in_lanes<std::int64_t>(team, selections_of{global_counts}, experts);
    const T global_rows = static_cast<T>(selections) / static_cast<T>(k);
    const T per_selection =
        selections > 0 ? balance_scale * static_cast<T>(experts) / (global_rows * global_rows) : T(0);
    const T* const probability = probabilities + row * experts;
    const std::int32_t* const choice = choices + row * k;
    const T* const weight = weights + row * k;
    const T* const dweight = dweights + row * k;
    T* const dlogit = dlogits + row * experts;
    T chosen = 0;
    T pull = 0;
    for (std::size_t j = 0; j < k; ++j) {
      chosen += probability[choice[j]];
      pull += dweight[j] * weight[j];
    }
    kernel::for_each_index(team, experts, balance{global_counts, per_selection, dlogit});
    kernel::for_each_index(team, k, pulled{choice, dweight, pull, chosen, dlogit});
    const T inner = kernel::sum_in_order<T>(team, kernel::products_of<T, T>{dlogit, probability}, experts);
    if constexpr (std::is_same_v<T, Out>)
      kernel::for_each_index(team, experts, kernel::softmax_derivative<T>{probability, dlogit, dlogit, inner, T(1)});
    else
      kernel::for_each_index(
          team, experts, kernel::softmax_derivative<T, Out>{probability, dlogit, rounded + row * experts, inner, T(1)});
  }

 private:
  struct selections_of {
    const std::int64_t* counts;
    BELAY_HD constexpr std::int64_t operator()(std::size_t e) const noexcept { return counts[e]; }
  };
  struct balance {
    const std::int64_t* counts;
    T per_selection;
    T* out;
    BELAY_HD constexpr void operator()(std::size_t e) const noexcept {
      out[e] = per_selection * static_cast<T>(counts[e]);
    }
  };
  // The choices of a row differ.
  struct pulled {
    const std::int32_t* choice;
    const T* dweight;
    T pull;
    T chosen;
    T* out;
    BELAY_HD constexpr void operator()(std::size_t j) const noexcept { out[choice[j]] += (dweight[j] - pull) / chosen; }
  };
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
  frame.teams(rows, route_row<T>{logits.data(), result.choices.data(), result.weights.data(),
                                 result.probabilities.data(), experts, k, replay, result.global_counts.data()});
  if (rows == 0) frame.each(experts, kernel::fill<std::int64_t>{result.global_counts.data(), 0});
  if constexpr (sorting_kit<std::remove_cvref_t<decltype(frame.kit())>>) {
    frame.kit().histogram({result.choices.data(), {rows * k}}, result.counts);
  } else {
    frame.each(experts, kernel::fill<std::int64_t>{result.counts.data(), 0});
    frame.each(1, selection_counts{result.choices.data(), rows * k, result.counts.data()});
  }
  return result;
}

/// Throws `usage_error` unless the gradients have the shapes of the routing.
template <class T>
void expect_gradients(const routing<T>& routed, const extents<2>& dweights, const extents<2>& dlogits, where at) {
  if (dweights != extents<2>{routed.rows, routed.k} || dlogits != extents<2>{routed.rows, routed.experts})
    throw usage_error("route_backward: dweights is [rows, k] and dlogits [rows, experts] of the routing", at);
}

/// Writes `dlogits` [rows, experts] from `dweights` [rows, k]. The load-balancing term of one layer and micro-batch is
/// experts * sum_e f_e P_e, where f_e = selections of e by all ranks / rows of all ranks, and P_e = mean probability of
/// e over those rows. Its gradient, through P_e alone, is multiplied by `balance_scale`: the product of coefficient,
/// share of the layer and of the micro-batch, and gradient divisor.
template <class T, class Frame>
void route_backward(Frame& frame, const routing<T>& routed, view<const std::type_identity_t<T>, 2> dweights,
                    std::type_identity_t<T> balance_scale, view<std::type_identity_t<T>, 2> dlogits,
                    where at = where::current()) {
  expect_gradients(routed, dweights.shape(), dlogits.shape(), at);
  frame.teams(routed.rows,
              route_gradient_row<T>{routed.choices.data(), routed.weights.data(), routed.probabilities.data(),
                                    routed.global_counts.data(), dweights.data(), dlogits.data(), routed.experts,
                                    routed.k, balance_scale});
}
/// Writes `dlogits` in a type that is narrower than the numbers they are computed in, for products to read.
template <class T, class Frame, class Narrow>
  requires(!std::is_same_v<Narrow, T> && std::is_same_v<compute_type_t<Narrow>, T>)
void route_backward(Frame& frame, const routing<T>& routed, view<const std::type_identity_t<T>, 2> dweights,
                    std::type_identity_t<T> balance_scale, view<Narrow, 2> dlogits, where at = where::current()) {
  expect_gradients(routed, dweights.shape(), dlogits.shape(), at);
  const auto scope = frame.scratch_scope();
  const auto numbers = scratch<T>(frame, dlogits.shape());
  frame.teams(routed.rows,
              route_gradient_row<T, Narrow>{routed.choices.data(), routed.weights.data(), routed.probabilities.data(),
                                            routed.global_counts.data(), dweights.data(), numbers.data(),
                                            routed.experts, routed.k, balance_scale, dlogits.data()});
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
