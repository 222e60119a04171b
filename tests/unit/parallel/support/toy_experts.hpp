// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The smallest mixture of experts that has every gradient: a linear router and experts tanh(W x), over an
// exchange, and beside it the same mathematics written densely, token by token, without any of Belay.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/parallel/experts.hpp"

namespace toy {

inline double some_number(std::size_t seed, std::size_t i) {
  std::uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15ULL + (i + 1) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<double>((z ^ (z >> 31)) >> 11) / 9007199254740992.0 * 2 - 1;
}

template <class T>
std::vector<T> some_numbers(std::size_t count, std::size_t seed) {
  std::vector<T> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<T>(some_number(seed, i));
  return out;
}

/// The parameters of the whole layer; every rank makes all and uses its experts' part.
template <class T>
struct parameters {
  std::size_t experts;
  std::size_t hidden;
  std::vector<T> router;    // [experts, hidden]
  std::vector<T> matrices;  // [experts, hidden, hidden]
  std::vector<T> router_gradient;
  std::vector<T> matrices_gradient;

  parameters(std::size_t number_of_experts, std::size_t width, std::size_t seed)
      : experts(number_of_experts),
        hidden(width),
        router(some_numbers<T>(experts * hidden, seed)),
        matrices(some_numbers<T>(experts * hidden * hidden, seed + 1)),
        router_gradient(router.size()),
        matrices_gradient(matrices.size()) {}

  /// out = tanh(W_e x) of one row.
  void expert(std::size_t e, const T* x, T* out) const {
    for (std::size_t o = 0; o < hidden; ++o) {
      T sum = 0;
      for (std::size_t i = 0; i < hidden; ++i) sum += matrices[(e * hidden + o) * hidden + i] * x[i];
      out[o] = std::tanh(sum);
    }
  }
  /// Adds dW_e, writes dx, from the output and its gradient.
  void expert_backward(std::size_t e, const T* x, const T* out, const T* dout, T* dx) {
    for (std::size_t i = 0; i < hidden; ++i) dx[i] = 0;
    for (std::size_t o = 0; o < hidden; ++o) {
      const T d = dout[o] * (1 - out[o] * out[o]);
      for (std::size_t i = 0; i < hidden; ++i) {
        matrices_gradient[(e * hidden + o) * hidden + i] += d * x[i];
        dx[i] += d * matrices[(e * hidden + o) * hidden + i];
      }
    }
  }
};

template <class T, class Exchange>
struct layer {
  struct residue {
    belay::view<T, 2> out;
    belay::routing<T> routed;
    belay::view<T, 2> outputs;  // what this rank's experts computed; the exchange reuses its own copy
    belay::merged<T> tokens;
  };

  parameters<T>& weights;
  Exchange& exchange;
  std::size_t k;
  T balance_scale = 0;

  template <class Frame>
  residue forward(Frame& frame, belay::view<const T, 2> x) {
    const std::size_t rows = x.extent(0);
    const std::size_t hidden = weights.hidden;
    auto logits = frame.template scratch<T>(belay::extents<2>{rows, weights.experts});
    frame.run([=, all = &weights] {
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t e = 0; e < all->experts; ++e) {
          T sum = 0;
          for (std::size_t i = 0; i < hidden; ++i) sum += all->router[e * hidden + i] * x(row, i);
          logits(row, e) = sum;
        }
      }
    });
    auto routed = belay::route<T>(frame, logits, k);
    auto sent = exchange.dispatch(frame, x, routed);
    auto outputs = frame.template keep<T>(sent.rows().shape());
    frame.run([=, all = &weights, in = sent.rows(), out = sent.outputs(), ends = sent.offsets(),
               first = exchange.first_local_expert()] {
      for (std::size_t e = 0; e + 1 < ends.size(); ++e) {
        for (std::size_t row = ends[e]; row < ends[e + 1]; ++row) {
          all->expert(first + e, &in(row, 0), &outputs(row, 0));
          for (std::size_t i = 0; i < hidden; ++i) out(row, i) = outputs(row, i);
        }
      }
    });
    auto y = frame.template keep<T>(belay::extents<2>{rows, hidden});
    auto merged = std::move(sent).combine(frame, y);
    return {y, routed, outputs, std::move(merged).hand_over()};
  }

  template <class Frame>
  void backward(Frame& frame, residue&& saved, belay::view<const T, 2> dy, belay::view<T, 2> dx, const T* x) {
    const std::size_t rows = dy.extent(0);
    const std::size_t hidden = weights.hidden;
    auto dweights = frame.template scratch<T>(belay::extents<2>{rows, k});
    auto dlogits = frame.template scratch<T>(belay::extents<2>{rows, weights.experts});
    auto back = std::move(saved.tokens).backward(frame, dy, dweights);
    frame.run([all = &weights, in = back.rows(), out = saved.outputs, dout = back.output_gradients(),
               din = back.row_gradients(), ends = back.offsets(), first = exchange.first_local_expert()] {
      for (std::size_t e = 0; e + 1 < ends.size(); ++e) {
        for (std::size_t row = ends[e]; row < ends[e + 1]; ++row)
          all->expert_backward(first + e, &in(row, 0), &out(row, 0), &dout(row, 0), &din(row, 0));
      }
    });
    std::move(back).finish(frame, dx);
    belay::route_backward(frame, saved.routed, dweights, balance_scale, dlogits);
    frame.run([=, all = &weights] {
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t e = 0; e < all->experts; ++e) {
          for (std::size_t i = 0; i < hidden; ++i) {
            all->router_gradient[e * hidden + i] += dlogits(row, e) * x[row * hidden + i];
            dx(row, i) += dlogits(row, e) * all->router[e * hidden + i];
          }
        }
      }
    });
  }
};

/// That layer over all tokens, densely: no dispatch, no grouping, gradients by the chain rule a token.
template <class T>
struct dense {
  std::vector<T> y, dx;
  double balance = 0;

  dense(parameters<T>& w, std::size_t k, T balance_scale, const std::vector<T>& x, const std::vector<T>& dy) {
    const std::size_t hidden = w.hidden;
    const std::size_t rows = x.size() / hidden;
    const std::size_t experts = w.experts;
    y.assign(x.size(), 0);
    dx.assign(x.size(), 0);
    std::vector<T> p(rows * experts);
    std::vector<std::vector<std::size_t>> chosen(rows);
    std::vector<double> selected(experts), mean(experts);
    for (std::size_t r = 0; r < rows; ++r) {
      T sum = 0;
      for (std::size_t e = 0; e < experts; ++e) {
        T logit = 0;
        for (std::size_t i = 0; i < hidden; ++i) logit += w.router[e * hidden + i] * x[r * hidden + i];
        sum += p[r * experts + e] = std::exp(logit);
      }
      for (std::size_t e = 0; e < experts; ++e) p[r * experts + e] /= sum;
      std::vector<char> taken(experts);
      for (std::size_t j = 0; j < k; ++j) {
        std::size_t best = experts;
        for (std::size_t e = 0; e < experts; ++e) {
          if (taken[e] == 0 && (best == experts || p[r * experts + e] > p[r * experts + best])) best = e;
        }
        taken[best] = 1;
        chosen[r].push_back(best);
        selected[best] += 1;
      }
      for (std::size_t e = 0; e < experts; ++e) mean[e] += static_cast<double>(p[r * experts + e]);
    }
    const auto count = static_cast<double>(rows);
    for (std::size_t e = 0; e < experts; ++e) {
      balance += static_cast<double>(experts) * selected[e] / count * mean[e] / count;
    }
    std::vector<T> out(hidden), dout(hidden), back(hidden), dp(experts);
    for (std::size_t r = 0; r < rows; ++r) {
      T total = 0;
      for (std::size_t e : chosen[r]) total += p[r * experts + e];
      for (std::size_t e = 0; e < experts; ++e) {
        dp[e] = balance_scale * static_cast<T>(static_cast<double>(experts) * selected[e] / count / count);
      }
      // d(w_a)/d(p_b) = (a == b) / total - p_a / total^2
      for (std::size_t e : chosen[r]) {
        const T weight = p[r * experts + e] / total;
        w.expert(e, &x[r * hidden], out.data());
        T along = 0;
        for (std::size_t i = 0; i < hidden; ++i) {
          y[r * hidden + i] += weight * out[i];
          dout[i] = weight * dy[r * hidden + i];
          along += dy[r * hidden + i] * out[i];
        }
        w.expert_backward(e, &x[r * hidden], out.data(), dout.data(), back.data());
        for (std::size_t i = 0; i < hidden; ++i) dx[r * hidden + i] += back[i];
        for (std::size_t b : chosen[r]) {
          dp[b] += along * ((b == e ? 1 / total : 0) - p[r * experts + e] / total / total);
        }
      }
      T inner = 0;
      for (std::size_t e = 0; e < experts; ++e) inner += dp[e] * p[r * experts + e];
      for (std::size_t e = 0; e < experts; ++e) {
        const T dlogit = p[r * experts + e] * (dp[e] - inner);
        for (std::size_t i = 0; i < hidden; ++i) {
          w.router_gradient[e * hidden + i] += dlogit * x[r * hidden + i];
          dx[r * hidden + i] += dlogit * w.router[e * hidden + i];
        }
      }
    }
  }
};

}  // namespace toy
