// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Grouped-query causal self-attention with rotary positions and without biases. Queries, keys and values of a token lie
// side by side in one row. So the three projections are three products into one matrix, and a head is a range of its
// columns.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "model/causal_attention.hpp"
#include "model/matrix.hpp"
#include "model/parameters.hpp"
#include "model/rms_norm.hpp"
#include "model/rotary.hpp"

namespace model {

template <class T>
class attention {
 public:
  /// Keeps for each token: `out` (hidden), queries, keys and values after rotation, the outputs of the heads, and one
  /// number for each head. `x` is needed for the weights' gradients; a block may replace it by an equal copy.
  struct residue {
    view<T, 3> out;
    view<const T, 3> x;
    view<T, 2> packed;    // [rows, queries + keys + values]
    view<T, 2> context;   // [rows, queries]
    view<T, 3> log_sums;  // [sequences, heads, length]
  };

  /// `name` ends in "self_attn"; `positions` is shared by the layers of a model and outlives them.
  attention(const std::string& name, attention_shape shape, const rotary<T>& positions)
      : shape_(shape),
        rotary_(&positions),
        query_(matrix_spec(name + ".q_proj.weight", {shape.query_width(), shape.hidden})),
        key_(matrix_spec(name + ".k_proj.weight", {shape.key_width(), shape.hidden})),
        value_(matrix_spec(name + ".v_proj.weight", {shape.key_width(), shape.hidden})),
        output_(matrix_spec(name + ".o_proj.weight", {shape.hidden, shape.query_width()})) {
    if (shape.kv_heads == 0 || shape.heads % shape.kv_heads != 0) {
      throw belay::usage_error(std::to_string(shape.heads) + " heads cannot share " + std::to_string(shape.kv_heads) +
                                   " keys and values evenly",
                               belay::where::current());
    }
  }

  template <class Frame>
  [[nodiscard]] residue forward(Frame& frame, view<const T, 3> x) {
    return forward_onto(frame, x, frame.template keep<T>(x.shape()), T(0));
  }

  /// out = attention(x) + share * out, so that a residual connection needs no pass of its own.
  template <class Frame>
  [[nodiscard]] residue forward_onto(Frame& frame, view<const T, 3> x, view<T, 3> out, T share) {
    const std::size_t length = x.extent(1);
    const std::size_t rows = x.extent(0) * length;
    if (length > rotary_->positions()) {
      throw belay::usage_error("a sequence of " + std::to_string(length) + " tokens, but the model was made for " +
                                   std::to_string(rotary_->positions()) + " positions",
                               belay::where::current());
    }
    const residue saved{out, x, frame.template keep<T>(extents<2>{rows, shape_.packed_width()}),
                        frame.template keep<T>(extents<2>{rows, shape_.query_width()}),
                        frame.template keep<T>(extents<3>{x.extent(0), shape_.heads, length})};
    const causal_attention<T> heads(shape_, length);
    const auto scope = frame.scratch_scope();
    const auto scratch = frame.template scratch<T>(extents<1>{heads.forward_scratch()});
    frame.run([this, saved, heads, scratch, length, share] {
      const matrix<const T> in(rows_of(saved.x));
      const matrix<T> packed(saved.packed);
      product(queries(packed), in, weights(query_).transposed());
      product(keys(packed), in, weights(key_).transposed());
      product(values(packed), in, weights(value_).transposed());
      rotary_->apply(packed, shape_.heads + shape_.kv_heads, length, turn::forwards);
      heads.forward(packed, saved.context, saved.log_sums.data(), scratch.data());
      product(matrix<T>(rows_of(saved.out)), saved.context, weights(output_).transposed(), T(1), share);
    });
    return saved;
  }

  template <class Frame>
  void backward(Frame& frame, residue&& r, view<const T, 3> dout, view<T, 3> dx) {
    const std::size_t length = r.x.extent(1);
    const causal_attention<T> heads(shape_, length);
    const auto scope = frame.scratch_scope();
    const auto scratch = frame.template scratch<T>(extents<1>{heads.backward_scratch()});
    const auto dcontext_view = frame.template scratch<T>(r.context.shape());
    const auto dpacked_view = frame.template scratch<T>(r.packed.shape());
    frame.run([this, saved = r, heads, scratch, dcontext_view, dpacked_view, dout, dx, length] {
      const matrix<const T> in(rows_of(saved.x));
      const matrix<const T> dy(rows_of(dout));
      const matrix<T> dcontext(dcontext_view);
      const matrix<T> dpacked(dpacked_view);
      add_product(gradients(output_), dy.transposed(), saved.context);
      product(dcontext, dy, weights(output_));
      heads.backward(saved.packed, saved.context, saved.log_sums.data(), dcontext, dpacked, scratch.data());
      rotary_->apply(dpacked, shape_.heads + shape_.kv_heads, length, turn::backwards);
      add_product(gradients(query_), queries(dpacked).transposed(), in);
      add_product(gradients(key_), keys(dpacked).transposed(), in);
      add_product(gradients(value_), values(dpacked).transposed(), in);
      const matrix<T> din(rows_of(dx));
      product(din, queries(dpacked), weights(query_));
      add_product(din, keys(dpacked), weights(key_));
      add_product(din, values(dpacked), weights(value_));
    });
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(query_);
    visit(key_);
    visit(value_);
    visit(output_);
  }

 private:
  [[nodiscard]] static matrix<const T> weights(const belay::parameter<T>& p) {
    return {p.value(), p.shape()[0], p.shape()[1]};
  }
  [[nodiscard]] static matrix<T> gradients(const belay::parameter<T>& p) {
    return {p.gradient(), p.shape()[0], p.shape()[1]};
  }
  [[nodiscard]] matrix<T> queries(matrix<T> packed) const { return packed.column_range(0, shape_.query_width()); }
  [[nodiscard]] matrix<T> keys(matrix<T> packed) const {
    return packed.column_range(shape_.query_width(), shape_.key_width());
  }
  [[nodiscard]] matrix<T> values(matrix<T> packed) const {
    return packed.column_range(shape_.query_width() + shape_.key_width(), shape_.key_width());
  }

  attention_shape shape_;
  const rotary<T>* rotary_;
  belay::parameter<T> query_;
  belay::parameter<T> key_;
  belay::parameter<T> value_;
  belay::parameter<T> output_;
};

}  // namespace model
