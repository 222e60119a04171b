// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Causal softmax attention of grouped heads, without parameters. Probabilities are not kept: the backward computes them
// again from queries, keys and one number for each row (the logarithm of the softmax's sum), which saves heads x
// length^2 numbers for each sequence. Queries are processed in blocks, so that scratch grows with the length and not
// its square, and most of the masked half is never computed.
//
// It is a customisation point: where functions `attention_forward(kit, call)` and `attention_backward(kit, call)` are
// found for a kit, such as those of a fused kernel of one's own, they compute; else the kit's own attention, where it
// has one. The blocks are for a CPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "belay/kernel/rows.hpp"
#include "belay/step/frame.hpp"
#include "model/shapes.hpp"

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
  /// These columns of such rows.
  template <class U>
  [[nodiscard]] operand<U> queries(operand<U> packed) const {
    return packed.column_range(0, query_width());
  }
  template <class U>
  [[nodiscard]] operand<U> keys(operand<U> packed) const {
    return packed.column_range(query_width(), key_width());
  }
  template <class U>
  [[nodiscard]] operand<U> values(operand<U> packed) const {
    return packed.column_range(query_width() + key_width(), key_width());
  }
};

/// `packed` [sequences * length, packed_width] -> `context` [sequences * length, query_width] and `log_sums`
/// [sequences, heads, length]. Scores are numbers, also where rows are narrower.
template <class T>
struct attention_forward_call {
  attention_shape shape;
  std::size_t length = 0;
  operand<const T> packed;
  operand<T> context;
  view<compute_type_t<T>, 3> log_sums;
  compute_type_t<T>* scratch = nullptr;  // causal_attention::forward_scratch elements
};

/// The gradient of `packed`, all of which is written, from that of the context.
template <class T>
struct attention_backward_call {
  attention_shape shape;
  std::size_t length = 0;
  operand<const T> packed;
  operand<const T> context;
  view<const compute_type_t<T>, 3> log_sums;
  operand<const compute_type_t<T>> dcontext;
  operand<compute_type_t<T>> dpacked;
  compute_type_t<T>* scratch = nullptr;  // causal_attention::backward_scratch elements
};

/// A kit with an attention of its own.
template <class Kit, class T>
concept has_attention = requires(Kit& kit, const attention_forward_call<T>& forward,
                                 const attention_backward_call<T>& backward) {
  attention_forward(kit, forward);
  attention_backward(kit, backward);
};

template <class T>
class causal_attention {
 public:
  using number = compute_type_t<T>;
  static constexpr std::size_t block = 64;  // queries at a time

  causal_attention(attention_shape shape, std::size_t length) : shape_(shape), length_(length) {}

  /// Elements of scratch for `forward` and for `backward`.
  [[nodiscard]] std::size_t forward_scratch() const { return std::min(block, length_) * length_; }
  [[nodiscard]] std::size_t backward_scratch() const { return 2 * forward_scratch(); }

  template <class Frame>
  void forward(Frame& frame, const attention_forward_call<T>& call) const {
    if constexpr (has_attention<decltype(frame.kit()), T>)
      attention_forward(frame.kit(), call);
    else if constexpr (belay::attention_kit<decltype(frame.kit()), T>)
      frame.kit().attention(belay::attention_call<T>{sizes(), shape_.queries(call.packed), shape_.keys(call.packed),
                                                     shape_.values(call.packed), call.context, call.log_sums.data()});
    else
      forward_in_blocks(frame, call);
  }
  template <class Frame>
  void backward(Frame& frame, const attention_backward_call<T>& call) const {
    if constexpr (has_attention<decltype(frame.kit()), T>)
      attention_backward(frame.kit(), call);
    else if constexpr (belay::attention_kit<decltype(frame.kit()), T>)
      frame.kit().attention(belay::attention_gradient_call<T>{
          sizes(), shape_.queries(call.packed), shape_.keys(call.packed), shape_.values(call.packed), call.context,
          call.log_sums.data(), call.dcontext, shape_.queries(call.dpacked), shape_.keys(call.dpacked),
          shape_.values(call.dpacked)});
    else
      backward_in_blocks(frame, call);
  }

 private:
  void forward_in_blocks(auto& frame, const attention_forward_call<T>& call) const {
    each_head(call.packed.rows, [&](std::size_t first_row, std::size_t head, std::size_t index) {
      const auto rows = call.packed.row_range(first_row, length_);
      for (std::size_t first = 0; first < length_; first += block) {
        const std::size_t count = std::min(block, length_ - first);
        const std::size_t visible = first + count;
        const operand<number> scores(call.scratch, count, visible, visible);
        const auto out = call.context.row_range(first_row + first, count).column_range(head * dim(), dim());
        frame.product(scores, query(rows, head).row_range(first, count),
                      transposed(key(rows, head).row_range(0, visible)), scale());
        frame.teams(count, kernel::causal_softmax_rows<number>{scores.data, scores.data, visible, number(1), first,
                                                               call.log_sums.data() + index * length_ + first});
        frame.product(out, scores, value(rows, head).row_range(0, visible));
      }
    });
  }

  void backward_in_blocks(auto& frame, const attention_backward_call<T>& call) const {
    const std::size_t group = shape_.heads / shape_.kv_heads;
    each_head(call.packed.rows, [&](std::size_t first_row, std::size_t head, std::size_t index) {
      const auto rows = call.packed.row_range(first_row, length_);
      const auto drows = call.dpacked.row_range(first_row, length_);
      // From the last block backwards: it attends to every key, so the first head of a group writes their gradients.
      for (std::size_t after = length_; after > 0;) {
        const std::size_t first = (after - 1) / block * block;
        const std::size_t count = after - first;
        const std::size_t visible = after;
        const operand<number> weights(call.scratch, count, visible, visible);
        const operand<number> dscores(call.scratch + forward_scratch(), count, visible, visible);
        const auto q = query(rows, head).row_range(first, count);
        const auto k = key(rows, head).row_range(0, visible);
        const auto v = value(rows, head).row_range(0, visible);
        const auto out = call.context.row_range(first_row + first, count).column_range(head * dim(), dim());
        const auto dout = call.dcontext.row_range(first_row + first, count).column_range(head * dim(), dim());
        frame.product(weights, q, transposed(k), scale());
        frame.product(dscores, dout, transposed(v));
        frame.teams(count, kernel::attention_rows_backward<number, T>{
                               weights.data, dscores.data, call.log_sums.data() + index * length_ + first, out.data,
                               dout.data, out.stride, dout.stride, dim(), visible, first});
        const auto dk = key(drows, head).row_range(0, visible);
        const auto dv = value(drows, head).row_range(0, visible);
        frame.product(query(drows, head).row_range(first, count), dscores, k, scale());
        if (head % group == 0 && after == length_) {
          frame.product(dk, transposed(dscores), q, scale());
          frame.product(dv, transposed(weights), dout);
        } else {
          frame.product(adding_to(dk), transposed(dscores), q, scale());
          frame.product(adding_to(dv), transposed(weights), dout);
        }
        after = first;
      }
    });
  }

  [[nodiscard]] belay::attention_sizes sizes() const {
    return {shape_.heads, shape_.kv_heads, shape_.head_dim, length_};
  }
  [[nodiscard]] std::size_t dim() const { return shape_.head_dim; }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(shape_.head_dim)); }

  template <class U>
  [[nodiscard]] operand<U> query(operand<U> rows, std::size_t head) const {
    return rows.column_range(head * dim(), dim());
  }
  template <class U>
  [[nodiscard]] operand<U> key(operand<U> rows, std::size_t head) const {
    return rows.column_range(shape_.query_width() + kv_head(head) * dim(), dim());
  }
  template <class U>
  [[nodiscard]] operand<U> value(operand<U> rows, std::size_t head) const {
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
