// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a causal softmax attention of grouped heads is asked for, as plain data: for kits that have one of their own.
//
//   kit.attention(belay::attention_call<float>{sizes, queries, keys, values, context, log_sums});
#pragma once

#include <cmath>
#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"

namespace belay::inline BELAY_ABI {

/// `heads` heads of queries share `kv_heads` heads of keys and values, in order. Rows are tokens, sequences of `length`
/// one behind the other; a head is `head_size` columns.
struct attention_sizes {
  std::size_t heads = 0;
  std::size_t kv_heads = 0;
  std::size_t head_size = 0;
  std::size_t length = 0;

  /// The factor that scores are multiplied by: 1 / sqrt(head_size).
  [[nodiscard]] double scale() const noexcept { return 1 / std::sqrt(static_cast<double>(head_size)); }
};

/// Writes `context`, of the shape of the queries, and `log_sums` [sequences, heads, length]: the logarithm of the sum
/// of e^score over the keys that a query sees, which are those up to its own position. Scores and sums are numbers.
template <class T>
struct attention_call {
  /// The sizes, the rows that are read, the output, and where the logarithm of each row's sum goes; null: nobody asks.
  attention_sizes sizes;
  operand<const T> queries;  // [rows, heads * head_size]
  operand<const T> keys;     // [rows, kv_heads * head_size]
  operand<const T> values;
  operand<T> context;
  compute_type_t<T>* log_sums = nullptr;
};

/// Writes the gradients of queries, keys and values, all of them, from that of the context.
template <class T>
struct attention_gradient_call {
  /// The sizes, what the forward read and wrote, the output's gradient, and where the gradients of its inputs go.
  attention_sizes sizes;
  operand<const T> queries;
  operand<const T> keys;
  operand<const T> values;
  operand<const T> context;
  const compute_type_t<T>* log_sums = nullptr;
  operand<const compute_type_t<T>> dcontext;
  operand<compute_type_t<T>> dqueries;
  operand<compute_type_t<T>> dkeys;
  operand<compute_type_t<T>> dvalues;
};

}  // namespace belay::inline BELAY_ABI
