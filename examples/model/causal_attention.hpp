// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Causal softmax attention of grouped heads, without parameters. Probabilities are not kept: the backward computes them
// again from queries, keys and one number for each row (the logarithm of the softmax's sum), which saves heads x
// length^2 numbers for each sequence. Queries are processed in blocks, so that scratch grows with the length and not
// its square, and most of the masked half is never computed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "model/arithmetic.hpp"
#include "model/matrix.hpp"

namespace model {

/// Sizes of one attention: `heads` queries share `kv_heads` keys and values, in order.
struct attention_shape {
  std::size_t hidden = 0;
  std::size_t heads = 0;
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;

  [[nodiscard]] std::size_t query_width() const { return heads * head_dim; }
  [[nodiscard]] std::size_t key_width() const { return kv_heads * head_dim; }
  /// Columns of a row that holds all queries, then all keys, then all values.
  [[nodiscard]] std::size_t packed_width() const { return query_width() + 2 * key_width(); }
};

template <class T>
class causal_attention {
 public:
  static constexpr std::size_t block = 64;  // queries at a time

  causal_attention(attention_shape shape, std::size_t length) : shape_(shape), length_(length) {}

  /// Elements of scratch for `forward` and for `backward`.
  [[nodiscard]] std::size_t forward_scratch() const { return std::min(block, length_) * length_; }
  [[nodiscard]] std::size_t backward_scratch() const { return 2 * forward_scratch(); }

  /// `packed` [sequences * length, packed_width] -> `context` [sequences * length, query_width];
  /// `log_sums` [sequences, heads, length].
  void forward(matrix<const T> packed, matrix<T> context, T* log_sums, T* scratch) const {
    each_head(packed.rows, [&](std::size_t first_row, std::size_t head, std::size_t index) {
      const auto rows = packed.row_range(first_row, length_);
      for (std::size_t first = 0; first < length_; first += block) {
        const std::size_t count = std::min(block, length_ - first);
        const std::size_t visible = first + count;
        const matrix<T> scores(scratch, count, visible);
        const auto out = context.row_range(first_row + first, count).column_range(head * dim(), dim());
        product(scores, query(rows, head).row_range(first, count), key(rows, head).row_range(0, visible).transposed(),
                scale());
        T sums[block];
        for (std::size_t i = 0; i < count; ++i) {
          T* row = scores.row(i);
          const std::size_t seen = first + i + 1;
          const T largest = largest_of(row, seen);
          sums[i] = sum_over<T>(seen, [=](auto at) {
            const lanes<T> weight = at.only_valid(exponential(at.load(row) - largest));
            at.store(row, weight);
            return weight;
          });
          std::fill(row + seen, row + visible, T(0));
          log_sums[index * length_ + first + i] = largest + std::log(sums[i]);
        }
        product(out, scores, value(rows, head).row_range(0, visible));
        for (std::size_t i = 0; i < count; ++i) {
          T* row = out.row(i);
          const T inverse = T(1) / sums[i];
          for_lanes<T>(dim(), [=](auto at) { at.store(row, at.load(row) * inverse); });
        }
      }
    });
  }

  /// Writes all of `dpacked`, of the shape of `packed`.
  void backward(matrix<const T> packed, matrix<const T> context, const T* log_sums, matrix<const T> dcontext,
                matrix<T> dpacked, T* scratch) const {
    const std::size_t group = shape_.heads / shape_.kv_heads;
    each_head(packed.rows, [&](std::size_t first_row, std::size_t head, std::size_t index) {
      const auto rows = packed.row_range(first_row, length_);
      const auto drows = dpacked.row_range(first_row, length_);
      // From the last block backwards: it attends to every key, so the first head of a group writes their gradients.
      T beta = head % group == 0 ? T(0) : T(1);
      for (std::size_t after = length_; after > 0;) {
        const std::size_t first = (after - 1) / block * block;
        const std::size_t count = after - first;
        const std::size_t visible = after;
        after = first;
        const matrix<T> weights(scratch, count, visible);
        const matrix<T> dscores(scratch + forward_scratch(), count, visible);
        const auto q = query(rows, head).row_range(first, count);
        const auto k = key(rows, head).row_range(0, visible);
        const auto v = value(rows, head).row_range(0, visible);
        const auto out = context.row_range(first_row + first, count).column_range(head * dim(), dim());
        const auto dout = dcontext.row_range(first_row + first, count).column_range(head * dim(), dim());
        product(weights, q, k.transposed(), scale());
        product(dscores, dout, v.transposed());
        for (std::size_t i = 0; i < count; ++i) {
          T* weight = weights.row(i);
          T* dscore = dscores.row(i);
          const std::size_t seen = first + i + 1;
          const T log_sum = log_sums[index * length_ + first + i];
          const T* y = out.row(i);
          const T* dy = dout.row(i);
          const T mean = sum_over<T>(dim(), [=](auto at) { return at.load(y) * at.load(dy); });
          for_lanes<T>(seen, [=](auto at) {
            const lanes<T> w = exponential(at.load(weight) - log_sum);
            at.store(weight, w);
            at.store(dscore, w * (at.load(dscore) - mean));
          });
          std::fill(weight + seen, weight + visible, T(0));
          std::fill(dscore + seen, dscore + visible, T(0));
        }
        product(query(drows, head).row_range(first, count), dscores, k, scale());
        product(key(drows, head).row_range(0, visible), dscores.transposed(), q, scale(), beta);
        product(value(drows, head).row_range(0, visible), weights.transposed(), dout, T(1), beta);
        beta = T(1);
      }
    });
  }

 private:
  [[nodiscard]] std::size_t dim() const { return shape_.head_dim; }
  [[nodiscard]] T scale() const { return T(1) / std::sqrt(static_cast<T>(shape_.head_dim)); }

  template <class U>
  [[nodiscard]] matrix<U> query(matrix<U> rows, std::size_t head) const {
    return rows.column_range(head * dim(), dim());
  }
  template <class U>
  [[nodiscard]] matrix<U> key(matrix<U> rows, std::size_t head) const {
    return rows.column_range(shape_.query_width() + kv_head(head) * dim(), dim());
  }
  template <class U>
  [[nodiscard]] matrix<U> value(matrix<U> rows, std::size_t head) const {
    return rows.column_range(shape_.query_width() + shape_.key_width() + kv_head(head) * dim(), dim());
  }
  [[nodiscard]] std::size_t kv_head(std::size_t head) const { return head * shape_.kv_heads / shape_.heads; }

  /// Calls visit(first row of the sequence, head, sequence * heads + head).
  template <class Visit>
  void each_head(std::size_t rows, Visit visit) const {
    if (length_ == 0) return;
    for (std::size_t sequence = 0; sequence < rows / length_; ++sequence) {
      for (std::size_t head = 0; head < shape_.heads; ++head) {
        visit(sequence * length_, head, sequence * shape_.heads + head);
      }
    }
  }

  attention_shape shape_;
  std::size_t length_;
};

}  // namespace model
