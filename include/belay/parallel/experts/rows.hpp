// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The four kernels that move rows between a rank's tokens and the owners' slots. A kernel index is a token. A token's
// rows belong to it alone in every slot, so tokens can run in any order. Sums over j run in the order of j.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "belay/core/config.hpp"
#include "belay/parallel/experts/layout.hpp"

namespace belay::inline BELAY_ABI {

/// A slot on every rank: `base[owner]` is its first element as this rank addresses it.
template <class T>
struct peer_slots {
  T* const* base;
  const std::int32_t* choices;  // [rows, k]
  const std::int32_t* places;   // [rows, k]
  std::size_t k;
  std::size_t hidden;
  std::size_t local;  // experts of an owner

  /// The row of (token, j), or nullptr where there was no room for it.
  [[nodiscard]] BELAY_HD T* row(std::size_t token, std::size_t j) const {
    const std::size_t i = token * k + j;
    if (places[i] == no_place) return nullptr;
    return base[static_cast<std::size_t>(choices[i]) / local] + static_cast<std::size_t>(places[i]) * hidden;
  }
};

/// Copies a token's row of x to each of its places.
template <class T>
struct push_tokens {
  peer_slots<T> slots;
  const T* x;

  BELAY_HD void operator()(std::size_t token) const {
    const T* source = x + token * slots.hidden;
    for (std::size_t j = 0; j < slots.k; ++j) {
      if (T* row = slots.row(token, j)) std::memcpy(row, source, slots.hidden * sizeof(T));
    }
  }
};

/// y = sum_j weight_j * row_j.
template <class T>
struct pull_weighted {
  peer_slots<T> slots;
  const T* weights;
  T* y;

  BELAY_HD void operator()(std::size_t token) const {
    const std::size_t hidden = slots.hidden;
    T* __restrict target = y + token * hidden;
    bool first = true;
    for (std::size_t j = 0; j < slots.k; ++j) {
      const T* __restrict row = slots.row(token, j);
      if (row == nullptr) continue;
      const T weight = weights[token * slots.k + j];
      if (first) {
        for (std::size_t i = 0; i < hidden; ++i) target[i] = weight * row[i];
      } else {
        for (std::size_t i = 0; i < hidden; ++i) target[i] += weight * row[i];
      }
      first = false;
    }
    if (first) std::memset(target, 0, hidden * sizeof(T));
  }
};

/// dweight_j = <dy, row_j>; then row_j = weight_j * dy. The output is not needed any more, and the row belongs to this
/// token alone, so the gradient needs neither a slot nor a synchronisation of its own.
template <class T>
struct exchange_gradients {
  peer_slots<T> slots;
  const T* weights;
  const T* dy;
  T* dweights;

  BELAY_HD void operator()(std::size_t token) const {
    const std::size_t hidden = slots.hidden;
    const T* __restrict gradient = dy + token * hidden;
    for (std::size_t j = 0; j < slots.k; ++j) {
      T* __restrict row = slots.row(token, j);
      T total = 0;
      if (row != nullptr) {
        const T weight = weights[token * slots.k + j];
        // A fixed number of partial sums vectorises without allowing the compiler to reorder sums.
        constexpr std::size_t sums = 16;
        T partial[sums] = {};
        std::size_t i = 0;
        for (; i + sums <= hidden; i += sums) {
          for (std::size_t lane = 0; lane < sums; ++lane) {
            partial[lane] += gradient[i + lane] * row[i + lane];
            row[i + lane] = weight * gradient[i + lane];
          }
        }
        for (; i < hidden; ++i) {
          total += gradient[i] * row[i];
          row[i] = weight * gradient[i];
        }
        for (std::size_t lane = 0; lane < sums; ++lane) total += partial[lane];
      }
      dweights[token * slots.k + j] = total;
    }
  }
};

/// dx = sum_j row_j.
template <class T>
struct pull_sum {
  peer_slots<T> slots;
  T* dx;

  BELAY_HD void operator()(std::size_t token) const {
    const std::size_t hidden = slots.hidden;
    T* __restrict target = dx + token * hidden;
    bool first = true;
    for (std::size_t j = 0; j < slots.k; ++j) {
      const T* __restrict row = slots.row(token, j);
      if (row == nullptr) continue;
      if (first) {
        std::memcpy(target, row, hidden * sizeof(T));
      } else {
        for (std::size_t i = 0; i < hidden; ++i) target[i] += row[i];
      }
      first = false;
    }
    if (first) std::memset(target, 0, hidden * sizeof(T));
  }
};

inline void for_each_token(const auto& kernel, std::size_t tokens) {
  for (std::size_t token = 0; token < tokens; ++token) kernel(token);
}

}  // namespace belay::inline BELAY_ABI
