// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The four kernels that move rows between a rank's tokens and the owners' slots. A kernel index is a token. A token's
// rows belong to it alone in every slot, so tokens can run in any order. Sums over j run in the order of j, as numbers;
// rows of a narrower format are rounded once.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/non_temporal.hpp"
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

/// Rows that a rank pushes to its peers in one dispatch, in bytes, from which on they go around the caches: more than a
/// rank's part of them holds on the machines that were measured.
inline constexpr std::size_t non_temporal_from = std::size_t{24} << 20;

/// Copies a token's row of x to each of its places.
template <class T>
struct push_tokens {
  peer_slots<T> peers;
  const T* x;
  int non_temporal;  // whether the rows go around the caches: then `finish_non_temporal` follows

  BELAY_HD void operator()(std::size_t token) const {
    const T* source = x + token * peers.hidden;
    const std::size_t bytes = peers.hidden * sizeof(T);
    for (std::size_t j = 0; j < peers.k; ++j) {
      T* const row = peers.row(token, j);
      if (row == nullptr) continue;
      if (non_temporal != 0)
        kernel::copy_non_temporal(row, source, bytes);
      else
        std::memcpy(row, source, bytes);
    }
  }
};

/// A row as a term of a sum: itself times its weight.
template <class T>
struct weighted_row {
  const T* row;
  compute_type_t<T> weight;
  [[nodiscard]] BELAY_HD compute_type_t<T> operator[](std::size_t i) const noexcept {
    return weight * kernel::widened(row[i]);
  }
};
/// A row as a term of a sum: itself.
template <class T>
struct plain_row {
  const T* row;
  [[nodiscard]] BELAY_HD compute_type_t<T> operator[](std::size_t i) const noexcept { return kernel::widened(row[i]); }
};
enum class summing { begins, goes_on };

/// target = the sum of `Count` rows, or target += it, in one pass: each element is summed in the order of the rows. Few
/// rows a pass, so that the processor's prefetchers follow all of them.
template <summing How, std::size_t Count, class T, class Row>
BELAY_HD inline void add_rows(T* __restrict target, const Row* rows, std::size_t hidden) {
  Row row[Count];
  for (std::size_t j = 0; j < Count; ++j) row[j] = rows[j];
  for (std::size_t i = 0; i < hidden; ++i) {
    auto total = How == summing::goes_on ? kernel::widened(target[i]) + row[0][i] : row[0][i];
    for (std::size_t j = 1; j < Count; ++j) total += row[j][i];
    target[i] = static_cast<T>(total);
  }
}
template <std::size_t Count, class T, class Row>
BELAY_HD inline void add_rows(T* target, const Row* rows, std::size_t hidden, summing how) {
  if (how == summing::begins)
    add_rows<summing::begins, Count>(target, rows, hidden);
  else
    add_rows<summing::goes_on, Count>(target, rows, hidden);
}

/// Sums the rows of a token's choices into `target`, each as `row_of(row, j)`; zeroes it where there is none.
template <class Target, class T, class RowOf>
BELAY_HD inline void sum_token(Target* target, const peer_slots<T>& peers, std::size_t token, const RowOf& row_of) {
  using row_type = decltype(row_of(static_cast<const T*>(nullptr), std::size_t{}));
  constexpr std::size_t pass = 4;
  row_type rows[pass];
  std::size_t count = 0;
  summing how = summing::begins;
  for (std::size_t j = 0; j < peers.k; ++j) {
    const T* const row = peers.row(token, j);
    if (row == nullptr) continue;
    rows[count++] = row_of(row, j);
    if (count < pass) continue;
    add_rows<pass>(target, rows, peers.hidden, how);
    how = summing::goes_on;
    count = 0;
  }
  const row_type* left = rows;
  if (count >= 2) {
    add_rows<2>(target, left, peers.hidden, how);
    how = summing::goes_on;
    left += 2;
    count -= 2;
  }
  if (count == 1) {
    add_rows<1>(target, left, peers.hidden, how);
    how = summing::goes_on;
  }
  if (how == summing::begins) std::memset(target, 0, peers.hidden * sizeof(Target));
}

/// y = sum_j weight_j * row_j; y may be wider.
template <class T, class Target = T>
struct pull_weighted {
  peer_slots<T> peers;
  const compute_type_t<T>* weights;
  Target* y;

  BELAY_HD void operator()(std::size_t token) const {
    sum_token(y + token * peers.hidden, peers, token, [this, token](const T* row, std::size_t j) {
      return weighted_row<T>{row, weights[token * peers.k + j]};
    });
  }
};

/// dweight_j = <dy, row_j>; then row_j = weight_j * dy. The output is not needed any more, and the row belongs to this
/// token alone, so the gradient needs neither a slot nor a synchronisation of its own. dy may be wider.
template <class T, class Dy = T>
struct exchange_gradients {
  using number = compute_type_t<T>;

  peer_slots<T> peers;
  const number* weights;
  const Dy* dy;
  number* dweights;

  BELAY_HD void operator()(std::size_t token) const {
    const std::size_t hidden = peers.hidden;
    const Dy* __restrict gradient = dy + token * hidden;
    for (std::size_t j = 0; j < peers.k; ++j) {
      T* __restrict row = peers.row(token, j);
      number total = 0;
      if (row != nullptr) {
        const number weight = weights[token * peers.k + j];
        // A fixed number of partial sums vectorises without allowing the compiler to reorder sums.
        constexpr std::size_t sums = 16;
        number partial[sums] = {};
        std::size_t i = 0;
        for (; i + sums <= hidden; i += sums) {
          for (std::size_t lane = 0; lane < sums; ++lane) {
            const number d = kernel::widened(gradient[i + lane]);
            partial[lane] += d * kernel::widened(row[i + lane]);
            row[i + lane] = static_cast<T>(weight * d);
          }
        }
        for (; i < hidden; ++i) {
          const number d = kernel::widened(gradient[i]);
          total += d * kernel::widened(row[i]);
          row[i] = static_cast<T>(weight * d);
        }
        for (std::size_t lane = 0; lane < sums; ++lane) total += partial[lane];
      }
      dweights[token * peers.k + j] = total;
    }
  }
};

/// dx = sum_j row_j; dx may be wider.
template <class T, class Target = T>
struct pull_sum {
  peer_slots<T> peers;
  Target* dx;

  BELAY_HD void operator()(std::size_t token) const {
    sum_token(dx + token * peers.hidden, peers, token, [](const T* row, std::size_t) { return plain_row<T>{row}; });
  }
};

inline void for_each_token(const auto& kernel, std::size_t tokens) {
  for (std::size_t token = 0; token < tokens; ++token) kernel(token);
}

}  // namespace belay::inline BELAY_ABI
