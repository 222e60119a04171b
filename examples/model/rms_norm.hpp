// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// RMSNorm: x / sqrt(mean(x^2) + epsilon) * weight, row by row. A backward needs the input, which the caller keeps
// anyway, and one number for each row. Blocks compute the normalised rows a second time instead of keeping them.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "belay/core/view.hpp"
#include "model/arithmetic.hpp"
#include "model/matrix.hpp"
#include "model/parameters.hpp"

namespace model {

/// The rows of activations [sequences, length, width], as a matrix view.
template <class T>
[[nodiscard]] view<T, 2> rows_of(view<T, 3> activations) {
  return {activations.data(), {activations.extent(0) * activations.extent(1), activations.extent(2)}};
}

template <class T>
class rms_norm {
 public:
  /// Keeps, for rows x width inputs: `out` (rows x width) and `scale` (rows).
  struct residue {
    view<T, 3> out;
    view<const T, 3> x;
    view<T, 1> scale;  // 1 / sqrt(mean(x^2) + epsilon)
  };

  rms_norm(std::string name, std::size_t width, double epsilon)
      : weight_(norm_spec(std::move(name), width)), epsilon_(static_cast<T>(epsilon)) {}

  template <class Frame>
  [[nodiscard]] residue forward(Frame& frame, view<const T, 3> x) {
    residue saved{frame.template keep<T>(x.shape()), x, frame.template keep<T>(row_count(x))};
    const auto in = rows_of(x);
    const auto out = rows_of(saved.out);
    const auto scale = saved.scale;
    frame.run([this, in, out, scale] { normalise(in, out, scale); });
    return saved;
  }

  template <class Frame>
  void backward(Frame& frame, residue&& r, view<const T, 3> dout, view<T, 3> dx) {
    const auto x = rows_of(r.x);
    const auto scale = r.scale;
    frame.run([this, x, scale, dout, dx] { differentiate(x, scale, rows_of(dout), nullptr, rows_of(dx)); });
  }

  /// Writes the normalised rows and each row's scale. Arithmetic for inside `run`.
  void normalise(view<const T, 2> x, view<T, 2> out, view<T, 1> scale) const {
    const std::size_t width = x.extent(1);
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      const T* in = x.data() + i * width;
      const T squares = sum_over<T>(width, [=](auto at) {
        const auto value = at.load(in);
        return value * value;
      });
      scale[i] = T(1) / std::sqrt(squares / static_cast<T>(width) + epsilon_);
    }
    renormalise(x, scale, out);
  }

  /// Writes the normalised rows again, with the same bits, from the scales of the first time.
  void renormalise(view<const T, 2> x, view<const T, 1> scale, view<T, 2> out) const {
    const std::size_t width = x.extent(1);
    const T* weight = weight_.value();
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      const T* in = x.data() + i * width;
      T* to = out.data() + i * width;
      const T factor = scale[i];
      for_lanes<T>(width, [=](auto at) { at.store(to, at.load(in) * factor * at.load(weight)); });
    }
  }

  /// Writes the input's gradient, plus `beside` (the gradient that went around the norm; may be null), and
  /// adds the weight's. `dx` may be the memory of `dout` or of `beside`.
  void differentiate(view<const T, 2> x, view<const T, 1> scale, view<const T, 2> dout, const T* beside,
                     view<T, 2> dx) const {
    const std::size_t width = x.extent(1);
    const T* weight = weight_.value();
    T* gradient = weight_.gradient();
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      const T* in = x.data() + i * width;
      const T* dy = dout.data() + i * width;
      T* to = dx.data() + i * width;
      const T factor = scale[i];
      const T along = sum_over<T>(width, [=](auto at) {
        const auto product = at.load(dy) * at.load(in);
        at.store(gradient, at.load(gradient) + product * factor);
        return product * at.load(weight);
      });
      const T pull = along * factor * factor * factor / static_cast<T>(width);
      if (beside == nullptr) {
        for_lanes<T>(width,
                     [=](auto at) { at.store(to, at.load(dy) * at.load(weight) * factor - at.load(in) * pull); });
      } else {
        const T* other = beside + i * width;
        for_lanes<T>(width, [=](auto at) {
          at.store(to, at.load(other) + (at.load(dy) * at.load(weight) * factor - at.load(in) * pull));
        });
      }
    }
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(weight_);
  }

  [[nodiscard]] static extents<1> row_count(view<const T, 3> x) { return {x.extent(0) * x.extent(1)}; }

 private:
  belay::parameter<T> weight_;
  T epsilon_;
};

}  // namespace model
