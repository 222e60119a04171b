// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// RMSNorm: x / sqrt(mean(x^2) + epsilon) * weight, row by row, of numbers. A backward needs the input, which the caller
// keeps anyway, and one number for each row. Blocks compute the normalised rows a second time instead of keeping them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "belay/kernel/rows.hpp"
#include "belay/step/frame.hpp"
#include "model/parameters.hpp"
#include "model/shapes.hpp"

namespace model {

template <class T>
class rms_norm {
 public:
  using number = compute_type_t<T>;

  /// Keeps, for rows x width inputs: `out` (rows x width) and `scale` (rows).
  struct residue {
    view<number, 3> out;
    view<const number, 3> x;
    view<number, 1> scale;  // 1 / sqrt(mean(x^2) + epsilon)
  };

  rms_norm(std::string name, std::size_t width, double epsilon)
      : weight_(norm_spec(std::move(name), width)), epsilon_(static_cast<number>(epsilon)) {}

  [[nodiscard]] residue forward(auto& frame, view<const number, 3> x) {
    const residue saved{keep<number>(frame, x.shape()), x, keep<number>(frame, row_count(x))};
    normalise(frame, rows_of(x), rows_of(saved.out), saved.scale);
    return saved;
  }

  void backward(auto& frame, residue&& r, view<const number, 3> dout, view<number, 3> dx) {
    differentiate(frame, rows_of(r.x), r.scale, rows_of(dout), nullptr, rows_of(dx));
  }

  /// Writes the normalised rows, rounded where `Out` is T, and each row's scale; and copies the rows to `around`, which
  /// may be null.
  template <class Out>
  void normalise(auto& frame, view<const number, 2> x, view<Out, 2> out, view<number, 1> scale,
                 number* around = nullptr) const {
    frame.teams(x.extent(0), kernel::rms_norm_rows<number, Out, T>{x.data(), frame.read(weight_).data(), out.data(),
                                                                   scale.data(), x.extent(1), epsilon_, around});
  }

  /// Writes the normalised rows again, with the same bits, from the scales of the first time.
  template <class Out>
  void renormalise(auto& frame, view<const number, 2> x, view<const number, 1> scale, view<Out, 2> out) const {
    frame.teams(x.extent(0), kernel::rms_norm_rows_again<number, Out, T>{x.data(), frame.read(weight_).data(),
                                                                         scale.data(), out.data(), x.extent(1)});
  }

  /// Writes the input's gradient, plus `beside` (the gradient that went around the norm; may be null), and adds the
  /// weight's. `dx` may be the memory of another gradient; that of `dout` only where `before_norm` has given it.
  void differentiate(auto& frame, view<const number, 2> x, view<const number, 1> scale, view<const number, 2> dout,
                     const number* beside, view<number, 2> dx) const {
    const std::size_t rows = x.extent(0), width = x.extent(1);
    add_gradient(frame, x, scale, dout);
    frame.teams(rows, kernel::rms_norm_rows_backward<number, number, number, number, T>{
                          x.data(), frame.read(weight_).data(), scale.data(), dout.data(), dx.data(), width, beside});
  }

  /// Adds the weight's gradient alone, of an input that has none.
  void add_gradient(auto& frame, view<const number, 2> x, view<const number, 1> scale,
                    view<const number, 2> dout) const {
    frame.columns_into(
        frame.add_to(weight_),
        [](number* sums, view<const number, 2> in, view<const number, 1> scales, view<const number, 2> gradient) {
          using term = kernel::rms_norm_weight_term<number>;
          return kernel::column_sums<term, number>{
              {in.data(), scales.data(), gradient.data(), in.extent(1)}, sums, in.extent(0), in.extent(1)};
        },
        x, scale, dout);
  }

  /// Memory for the gradient of the norm's output, from which its backward makes `dx`: that of `dx`, or scratch where
  /// the weight's gradient is made of it later.
  template <std::size_t Rank>
  [[nodiscard]] static view<number, Rank> before_norm(auto& frame, view<number, Rank> dx) {
    return frame.notes_additions() ? scratch<number>(frame, dx.shape()) : dx;
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(weight_);
  }

 private:
  belay::parameter<T> weight_;
  number epsilon_;
};

}  // namespace model
