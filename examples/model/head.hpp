// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The end of the model: the final norm and the projection onto the vocabulary. The normalised rows are not
// kept, but computed again in the backward.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "belay/step/frame.hpp"
#include "model/parameters.hpp"
#include "model/rms_norm.hpp"
#include "model/shapes.hpp"

namespace model {

template <class T>
class head {
 public:
  using number = compute_type_t<T>;

  /// Keeps, per token: `out` (the logits, vocabulary numbers) and one scale.
  struct residue {
    view<number, 3> out;
    view<const number, 3> x;
    view<number, 1> scale;
  };

  head(std::string norm_name, std::string projection_name, std::size_t vocabulary, std::size_t hidden, double epsilon)
      : norm_(std::move(norm_name), hidden, epsilon),
        projection_(matrix_spec(std::move(projection_name), {vocabulary, hidden})) {}

  [[nodiscard]] const char* name() const { return "lm_head"; }

  [[nodiscard]] residue forward(auto& frame, view<const number, 3> x) {
    const residue saved{keep<number>(frame, {x.extent(0), x.extent(1), projection_.shape()[0]}), x,
                        keep<number>(frame, row_count(x))};
    const auto scope = frame.scratch_scope();
    const auto normed = scratch<T>(frame, rows_of(x).shape());
    norm_.normalise(frame, rows_of(x), normed, saved.scale);
    frame.product(rows_of(saved.out), normed, transposed(frame.read(projection_)));
    return saved;
  }

  /// The kept logits, from which `dout` lies apart, are overwritten where T is narrower.
  void backward(auto& frame, residue&& r, view<const number, 3> dout, view<number, 3> dx) {
    const auto scope = frame.scratch_scope();
    const auto normed = scratch<T>(frame, rows_of(r.x).shape());
    const auto dlogits = rows_of(rounded_over<T>(frame, dout, r.out));  // a copy in scratch would be as large
    norm_.renormalise(frame, rows_of(r.x), r.scale, normed);
    frame.product(frame.add_to(projection_), transposed(dlogits), normed);
    const auto dnormed = norm_.before_norm(frame, rows_of(dx));
    frame.product(dnormed, dlogits, frame.read(projection_));
    norm_.differentiate(frame, rows_of(r.x), r.scale, to_read(dnormed), nullptr, rows_of(dx));
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    norm_.for_each_parameter(visit);
    visit(projection_);
  }

 private:
  rms_norm<T> norm_;
  belay::parameter<T> projection_;
};

}  // namespace model
