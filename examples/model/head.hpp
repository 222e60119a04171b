// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The end of the model: the final norm and the projection onto the vocabulary. The normalised rows are not
// kept, but computed again in the backward.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "belay/core/view.hpp"
#include "model/matrix.hpp"
#include "model/parameters.hpp"
#include "model/rms_norm.hpp"

namespace model {

template <class T>
class head {
 public:
  /// Keeps, per token: `out` (the logits, vocabulary numbers) and one scale.
  struct residue {
    view<T, 3> out;
    view<const T, 3> x;
    view<T, 1> scale;
  };

  head(std::string norm_name, std::string projection_name, std::size_t vocabulary, std::size_t hidden, double epsilon)
      : norm_(std::move(norm_name), hidden, epsilon),
        projection_(matrix_spec(std::move(projection_name), {vocabulary, hidden})) {}

  [[nodiscard]] const char* name() const { return "lm_head"; }

  template <class Frame>
  [[nodiscard]] residue forward(Frame& frame, view<const T, 3> x) {
    const residue saved{frame.template keep<T>(extents<3>{x.extent(0), x.extent(1), projection_.shape()[0]}), x,
                        frame.template keep<T>(rms_norm<T>::row_count(x))};
    const auto scope = frame.scratch_scope();
    const auto normed = frame.template scratch<T>(rows_of(x).shape());
    frame.run([this, saved, normed] {
      norm_.normalise(rows_of(saved.x), normed, saved.scale);
      product(matrix<T>(rows_of(saved.out)), normed, weights().transposed());
    });
    return saved;
  }

  template <class Frame>
  void backward(Frame& frame, residue&& r, view<const T, 3> dout, view<T, 3> dx) {
    const auto scope = frame.scratch_scope();
    const auto normed = frame.template scratch<T>(rows_of(r.x).shape());
    frame.run([this, saved = r, normed, dout, dx] {
      const matrix<const T> dlogits(rows_of(dout));
      const matrix<T> gradient(projection_.gradient(), projection_.shape()[0], projection_.shape()[1]);
      norm_.renormalise(rows_of(saved.x), saved.scale, normed);
      add_product(gradient, dlogits.transposed(), normed);
      product(matrix<T>(rows_of(dx)), dlogits, weights());
      norm_.differentiate(rows_of(saved.x), saved.scale, rows_of(dx), nullptr, rows_of(dx));
    });
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    norm_.for_each_parameter(visit);
    visit(projection_);
  }

 private:
  [[nodiscard]] matrix<const T> weights() const {
    return {projection_.value(), projection_.shape()[0], projection_.shape()[1]};
  }

  rms_norm<T> norm_;
  belay::parameter<T> projection_;
};

}  // namespace model
