// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// x + attention(norm(x)). The normalised rows are not kept: the backward computes them again from the input and one
// number for each row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "belay/core/view.hpp"
#include "model/attention.hpp"
#include "model/rms_norm.hpp"

namespace model {

template <class T>
class attention_block {
 public:
  /// Keeps what the attention keeps, and one scale a token.
  struct residue {
    view<T, 3> out;
    view<const T, 3> x;
    view<T, 1> scale;
    typename attention<T>::residue inner;
  };

  /// `name` is the decoder layer's.
  attention_block(const std::string& name, attention_shape shape, double epsilon, const rotary<T>& positions)
      : norm_(name + ".input_layernorm.weight", shape.hidden, epsilon),
        attention_(name + ".self_attn", shape, positions) {}

  template <class Frame>
  [[nodiscard]] residue forward(Frame& frame, view<const T, 3> x) {
    const auto out = frame.template keep<T>(x.shape());
    const auto scale = frame.template keep<T>(rms_norm<T>::row_count(x));
    const auto scope = frame.scratch_scope();
    const auto normed = frame.template scratch<T>(x.shape());
    frame.run([this, x, out, scale, normed] {
      norm_.normalise(rows_of(x), rows_of(normed), scale);
      std::copy_n(x.data(), x.size(), out.data());
    });
    return {out, x, scale, attention_.forward_onto(frame, normed, out, T(1))};
  }

  template <class Frame>
  void backward(Frame& frame, residue&& r, view<const T, 3> dout, view<T, 3> dx) {
    const auto scope = frame.scratch_scope();
    const auto normed = frame.template scratch<T>(r.x.shape());
    const auto x = r.x;
    const auto scale = r.scale;
    frame.run([this, x, scale, normed] { norm_.renormalise(rows_of(x), scale, rows_of(normed)); });
    r.inner.x = normed;
    attention_.backward(frame, std::move(r.inner), dout, dx);
    frame.run([this, x, scale, dout, dx] {
      norm_.differentiate(rows_of(x), scale, rows_of(view<const T, 3>(dx)), dout.data(), rows_of(dx));
    });
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    norm_.for_each_parameter(visit);
    attention_.for_each_parameter(visit);
  }

 private:
  rms_norm<T> norm_;
  attention<T> attention_;
};

}  // namespace model
