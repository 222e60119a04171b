// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The four movements of rows between a rank's tokens and the owners' slots, one functor each, called once a
// token. A token's rows are exclusively its own in every slot, so tokens can run in any order and nothing is
// summed by two writers; sums over j run in the order of j.
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
  std::size_t local;  // experts an owner has

  /// The row of (token, j), or nullptr when it found no room.
  [[nodiscard]] BELAY_HD T* row(std::size_t token, std::size_t j) const {
    const std::size_t i = token * k + j;
    if (places[i] == no_place) return nullptr;
    return base[static_cast<std::size_t>(choices[i]) / local] + static_cast<std::size_t>(places[i]) * hidden;
  }
};

/// x's row to each of its places.
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

/// dweight_j = <dy, row_j>, and weight_j * dy takes the row's place: the output is needed no more, and the
/// row is this token's alone, so the gradient needs no slot and no synchronisation of its own.
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
        // Fixed lanes: vectorised without giving the compiler leave to reorder sums.
        constexpr std::size_t lanes = 16;
        T partial[lanes] = {};
        std::size_t i = 0;
        for (; i + lanes <= hidden; i += lanes) {
          for (std::size_t lane = 0; lane < lanes; ++lane) {
            partial[lane] += gradient[i + lane] * row[i + lane];
            row[i + lane] = weight * gradient[i + lane];
          }
        }
        for (; i < hidden; ++i) {
          total += gradient[i] * row[i];
          row[i] = weight * gradient[i];
        }
        for (std::size_t lane = 0; lane < lanes; ++lane) total += partial[lane];
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

}  // namespace belay::inline BELAY_ABI
