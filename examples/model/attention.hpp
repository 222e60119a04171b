// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Grouped-query causal self-attention with rotary positions and without biases. Queries, keys and values of a token lie
// side by side in one row, and so do the rows of their three matrices in memory, one behind the other. So a projection
// is three products into one matrix, or one product, and a head is a range of its columns.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/core/operand.hpp"
#include "belay/device/kit.hpp"
#include "belay/step/frame.hpp"
#include "model/causal_attention.hpp"
#include "model/parameters.hpp"
#include "model/rotary.hpp"
#include "model/shapes.hpp"

namespace model {

/// Whether its four matrices are trained is in its type. Of frozen ones a backward makes the input's gradient alone.
template <class T, belay::learning Learning = belay::trainable>
class attention {
 public:
  using number = compute_type_t<T>;
  static constexpr bool trained = belay::has_gradient<Learning>;

  /// Keeps for each token: `out` (hidden), queries, keys and values after rotation, the outputs of the heads, and one
  /// number for each head. `x` is needed for the weights' gradients; a block may replace it by an equal copy.
  struct residue {
    view<number, 3> out;
    view<const T, 3> x;
    view<T, 2> packed;         // [rows, queries + keys + values]
    view<T, 2> context;        // [rows, queries]
    view<number, 3> log_sums;  // [sequences, heads, length]
  };

  /// `name` ends in "self_attn"; `positions` is shared by the layers of a model and outlives them.
  attention(const std::string& name, attention_shape shape, const rotary<T>& positions)
      : shape_(shape),
        rotary_(&positions),
        query_(matrix_spec(name + ".q_proj.weight", {shape.query_width(), shape.hidden})),
        key_(following_spec(name + ".k_proj.weight", {shape.key_width(), shape.hidden}, query_.name())),
        value_(following_spec(name + ".v_proj.weight", {shape.key_width(), shape.hidden}, key_.name())),
        output_(matrix_spec(name + ".o_proj.weight", {shape.hidden, shape.query_width()})) {
    if (shape.kv_heads == 0 || shape.heads % shape.kv_heads != 0) {
      throw belay::usage_error(std::to_string(shape.heads) + " heads cannot share " + std::to_string(shape.kv_heads) +
                                   " keys and values evenly",
                               belay::where::current());
    }
  }

  [[nodiscard]] residue forward(auto& frame, view<const T, 3> x) {
    const residue saved = attend(frame, x, keep<number>(frame, x.shape()));
    frame.product(rows_of(saved.out), saved.context, transposed(frame.read(output_)));
    return saved;
  }

  /// Adds to `out`, so that a residual connection needs no pass of its own.
  [[nodiscard]] residue forward_onto(auto& frame, view<const T, 3> x, view<number, 3> out) {
    const residue saved = attend(frame, x, out);
    frame.product(adding_to(rows_of(saved.out)), saved.context, transposed(frame.read(output_)));
    return saved;
  }

  void backward(auto& frame, residue&& r, view<const number, 3> dout, view<number, 3> dx) {
    const auto scope = frame.scratch_scope();
    const auto drows = scratch<T>(frame, r.packed.shape());
    differentiate_heads(frame, r, dout, drows);
    const operand<const T> dpacked = drows;
    if constexpr (trained) add_to_projections(frame, dpacked, rows_of(r.x));
    const auto din = rows_of(dx);
    if (const auto all = projections(frame); all.data != nullptr) return frame.product(din, dpacked, all);
    frame.product(din, shape_.queries(dpacked), frame.read(query_));
    frame.product(adding_to(din), shape_.keys(dpacked), frame.read(key_));
    frame.product(adding_to(din), shape_.values(dpacked), frame.read(value_));
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(query_);
    visit(key_);
    visit(value_);
    visit(output_);
  }

 private:
  // Whether three products are one: on a device, of elements that are narrower than numbers. Elsewhere the gradient of
  // the input is summed in the order of the three.
  template <class Frame>
  static constexpr bool multiplies_at_once =
      !kernel::real<T> && belay::joining_kit<std::remove_cvref_t<decltype(std::declval<Frame&>().kit())>>;

  // The three matrices as one, or without data.
  template <class Frame>
  [[nodiscard]] operand<const T> projections(Frame& frame) const {
    if constexpr (multiplies_at_once<Frame>)
      return belay::joined_rows(frame.read(query_), frame.read(key_), frame.read(value_));
    else
      return {};
  }
  void project(auto& frame, view<const T, 2> in, operand<number> packed) {
    if (const auto all = projections(frame); all.data != nullptr) return frame.product(packed, in, transposed(all));
    frame.product(shape_.queries(packed), in, transposed(frame.read(query_)));
    frame.product(shape_.keys(packed), in, transposed(frame.read(key_)));
    frame.product(shape_.values(packed), in, transposed(frame.read(value_)));
  }
  template <class Frame>
  void add_to_projections(Frame& frame, operand<const T> dpacked, view<const T, 2> in) {
    if constexpr (multiplies_at_once<Frame>) {
      const belay::joined_sums all{frame.add_to(query_), frame.add_to(key_), frame.add_to(value_)};
      if (all.adjacent()) return frame.product(adding_to(all), transposed(dpacked), in);
    }
    frame.product(frame.add_to(query_), transposed(shape_.queries(dpacked)), in);
    frame.product(frame.add_to(key_), transposed(shape_.keys(dpacked)), in);
    frame.product(frame.add_to(value_), transposed(shape_.values(dpacked)), in);
  }

  // All but the last product.
  [[nodiscard]] residue attend(auto& frame, view<const T, 3> x, view<number, 3> out) {
    const std::size_t length = x.extent(1);
    const std::size_t rows = x.extent(0) * length;
    if (length > rotary_->positions()) {
      throw belay::usage_error("a sequence of " + std::to_string(length) + " tokens, but the model was made for " +
                                   std::to_string(rotary_->positions()) + " positions",
                               belay::where::current());
    }
    const residue saved{out, x, keep<T>(frame, {rows, shape_.packed_width()}),
                        keep<T>(frame, {rows, shape_.query_width()}),
                        keep<number>(frame, {x.extent(0), shape_.heads, length})};
    const causal_attention<T> heads(shape_, length);
    const auto scope = frame.scratch_scope();
    const auto memory = scratch<number>(frame, {heads.forward_scratch()});
    {
      const auto before_rounding = frame.scratch_scope();
      const auto numbers = numbers_for(frame, saved.packed);
      project(frame, rows_of(x), numbers);
      rotary_->apply(frame, numbers, saved.packed, shape_.heads + shape_.kv_heads, length, kernel::rotation::forward);
    }
    heads.forward(frame, {shape_, length, saved.packed, saved.context, saved.log_sums, memory.data()});
    return saved;
  }

  // The gradient of the projections' rows before rotation, and the output matrix's.
  void differentiate_heads(auto& frame, const residue& r, view<const number, 3> dout, view<T, 2> drows) {
    const std::size_t length = r.x.extent(1);
    const causal_attention<T> heads(shape_, length);
    const auto before_rounding = frame.scratch_scope();
    const auto dcontext = scratch<number>(frame, r.context.shape());
    {
      const auto of_output = frame.scratch_scope();
      const auto dy = rows_of(rounded<T>(frame, dout));
      if constexpr (trained) frame.product(frame.add_to(output_), transposed(dy), r.context);
      frame.product(dcontext, dy, frame.read(output_));
    }
    const auto memory = scratch<number>(frame, {heads.backward_scratch()});
    const auto numbers = numbers_for(frame, drows);
    heads.backward(frame, {shape_, length, r.packed, r.context, r.log_sums, dcontext, numbers, memory.data()});
    rotary_->apply(frame, numbers, drows, shape_.heads + shape_.kv_heads, length, kernel::rotation::transposed);
  }

  attention_shape shape_;
  const rotary<T>* rotary_;
  using matrix = belay::parameter<T, belay::replicate, Learning>;

  matrix query_;
  matrix key_;
  matrix value_;
  matrix output_;
};

}  // namespace model
