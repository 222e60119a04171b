// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// x + attention(norm(x)). The normalised rows are not kept: the backward computes them again from the input and one
// number for each row.
#pragma once

#include <string>
#include <utility>

#include "belay/step/frame.hpp"
#include "model/attention.hpp"
#include "model/rms_norm.hpp"
#include "model/shapes.hpp"

namespace model {

template <class T, belay::learning Learning = belay::trainable>
class attention_block {
 public:
  using number = compute_type_t<T>;

  /// Keeps what the attention keeps, and one scale a token.
  struct residue {
    view<number, 3> out;
    view<const number, 3> x;
    view<number, 1> scale;
    typename attention<T, Learning>::residue inner;
  };

  /// `name` is the decoder layer's.
  attention_block(const std::string& name, attention_shape shape, double epsilon, const rotary<T>& positions)
      : norm_(name + ".input_layernorm.weight", shape.hidden, epsilon),
        attention_(name + ".self_attn", shape, positions) {}

  [[nodiscard]] residue forward(auto& frame, view<const number, 3> x) {
    const auto out = keep<number>(frame, x.shape());
    const auto scale = keep<number>(frame, row_count(x));
    const auto scope = frame.scratch_scope();
    const auto normed = scratch<T>(frame, x.shape());
    norm_.normalise(frame, rows_of(x), rows_of(normed), scale, out.data());
    return {out, x, scale, attention_.forward_onto(frame, normed, out)};
  }

  void backward(auto& frame, residue&& r, view<const number, 3> dout, view<number, 3> dx) {
    const auto scope = frame.scratch_scope();
    const auto dnormed = norm_.before_norm(frame, dx);
    differentiate(frame, std::move(r), dout, dnormed);
    norm_.differentiate(frame, rows_of(r.x), r.scale, rows_of(to_read(dnormed)), dout.data(), rows_of(dx));
  }
  /// Of an input that has no gradient.
  void backward(auto& frame, residue&& r, view<const number, 3> dout) {
    const auto scope = frame.scratch_scope();
    const auto dnormed = scratch<number>(frame, r.x.shape());
    differentiate(frame, std::move(r), dout, dnormed);
    norm_.add_gradient(frame, rows_of(r.x), r.scale, rows_of(to_read(dnormed)));
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    norm_.for_each_parameter(visit);
    attention_.for_each_parameter(visit);
  }

 private:
  void differentiate(auto& frame, residue&& r, view<const number, 3> dout, view<number, 3> dnormed) {
    const auto scope = frame.scratch_scope();
    if constexpr (attention<T, Learning>::trained) {
      const auto normed = scratch<T>(frame, r.x.shape());
      norm_.renormalise(frame, rows_of(r.x), r.scale, rows_of(normed));
      r.inner.x = normed;
    }
    attention_.backward(frame, std::move(r.inner), dout, dnormed);
  }

  rms_norm<T> norm_;
  attention<T, Learning> attention_;
};

}  // namespace model
