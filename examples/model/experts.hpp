// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The experts of this rank: w2(silu(w1 x) * (w3 x)) over rows that are grouped by expert. An expert's rows are
// processed in chunks that are small enough for intermediate results to stay in the cache. The chunks depend on the
// rows alone, so that the capacity changes no bit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "belay/core/view.hpp"
#include "model/arithmetic.hpp"
#include "model/matrix.hpp"
#include "model/parameters.hpp"

namespace model {

/// The experts `first` to `first + count - 1` of a layer.
using expert_range = belay::local_part;

template <class T>
class experts {
 public:
  static constexpr std::size_t chunk = 256;  // rows at a time

  /// Keeps gate and up projections: 2 x expert width numbers for every row of the capacity. `rows` is the caller's and
  /// must live as long.
  struct residue {
    view<const T, 2> rows;
    view<T, 2> gate;
    view<T, 2> up;
  };

  /// `name` ends in "experts"; all experts of the layer are one parameter a matrix, of which `local` is held.
  experts(const std::string& name, std::size_t count, std::size_t hidden, std::size_t width, expert_range local)
      : hidden_(hidden),
        width_(width),
        gate_(matrix_spec(name + ".w1", {count, width, hidden}), local),
        up_(matrix_spec(name + ".w3", {count, width, hidden}), local),
        down_(matrix_spec(name + ".w2", {count, hidden, width}), local) {}

  /// Writes `outputs` [capacity, hidden] for `rows` [capacity, hidden]; local expert e has the rows from
  /// offsets[e] to offsets[e + 1]. Rows beyond the last offset are not touched.
  template <class Frame>
  [[nodiscard]] residue forward(Frame& frame, view<const T, 2> rows, std::span<const std::size_t> offsets,
                                view<T, 2> outputs) {
    const extents<2> inner{rows.extent(0), width_};
    const residue saved{rows, frame.template keep<T>(inner), frame.template keep<T>(inner)};
    const auto scope = frame.scratch_scope();
    const auto scratch = frame.template scratch<T>(extents<2>{std::min(chunk, rows.extent(0)), width_});
    frame.run([this, saved, offsets, outputs, scratch] {
      each_chunk(offsets, [&](std::size_t expert, std::size_t first, std::size_t count) {
        const auto in = matrix<const T>(saved.rows).row_range(first, count);
        const auto gate = matrix<T>(saved.gate).row_range(first, count);
        const auto up = matrix<T>(saved.up).row_range(first, count);
        const auto inside = matrix<T>(scratch).row_range(0, count);
        product(gate, in, gate_weights(expert).transposed());
        product(up, in, up_weights(expert).transposed());
        const T* g = gate.data;
        const T* u = up.data;
        T* h = inside.data;
        for_lanes<T>(count * width_, [=](auto at) {
          const lanes<T> value = at.load(g);
          at.store(h, value * logistic<T>(value) * at.load(u));
        });
        product(matrix<T>(outputs).row_range(first, count), inside, down_weights(expert).transposed());
      });
    });
    return saved;
  }

  /// Writes `drows` where rows were used, and adds the weights' gradients. The kept projections are overwritten by
  /// their gradients.
  template <class Frame>
  void backward(Frame& frame, residue&& r, std::span<const std::size_t> offsets, view<const T, 2> doutputs,
                view<T, 2> drows) {
    const auto scope = frame.scratch_scope();
    const auto scratch = frame.template scratch<T>(extents<2>{std::min(chunk, r.rows.extent(0)), width_});
    frame.run([this, saved = r, offsets, doutputs, drows, scratch] {
      each_chunk(offsets, [&](std::size_t expert, std::size_t first, std::size_t count) {
        const auto in = matrix<const T>(saved.rows).row_range(first, count);
        const auto gate = matrix<T>(saved.gate).row_range(first, count);
        const auto up = matrix<T>(saved.up).row_range(first, count);
        const auto dout = matrix<const T>(doutputs).row_range(first, count);
        const auto inside = matrix<T>(scratch).row_range(0, count);
        product(inside, dout, down_weights(expert));
        T* g = gate.data;
        T* u = up.data;
        T* h = inside.data;
        for_lanes<T>(count * width_, [=](auto at) {
          const lanes<T> gate_value = at.load(g);
          const lanes<T> up_value = at.load(u);
          const lanes<T> gradient = at.load(h);
          const lanes<T> share = logistic<T>(gate_value);
          const lanes<T> silu = gate_value * share;
          at.store(h, silu * up_value);
          at.store(u, gradient * silu);
          at.store(g, gradient * up_value * (share + silu * (T(1) - share)));
        });
        add_product(gradient_of(down_, expert, hidden_, width_), dout.transposed(), inside);
        add_product(gradient_of(gate_, expert, width_, hidden_), gate.transposed(), in);
        add_product(gradient_of(up_, expert, width_, hidden_), up.transposed(), in);
        const auto din = matrix<T>(drows).row_range(first, count);
        product(din, gate, gate_weights(expert));
        add_product(din, up, up_weights(expert));
      });
    });
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(gate_);
    visit(up_);
    visit(down_);
  }

 private:
  using stacked = belay::parameter<T, belay::shard<0, belay::axis::expert>>;

  [[nodiscard]] matrix<const T> gate_weights(std::size_t expert) const {
    return {gate_.value() + expert * width_ * hidden_, width_, hidden_};
  }
  [[nodiscard]] matrix<const T> up_weights(std::size_t expert) const {
    return {up_.value() + expert * width_ * hidden_, width_, hidden_};
  }
  [[nodiscard]] matrix<const T> down_weights(std::size_t expert) const {
    return {down_.value() + expert * width_ * hidden_, hidden_, width_};
  }
  [[nodiscard]] static matrix<T> gradient_of(const stacked& p, std::size_t expert, std::size_t rows,
                                             std::size_t columns) {
    return {p.gradient() + expert * rows * columns, rows, columns};
  }

  template <class Visit>
  static void each_chunk(std::span<const std::size_t> offsets, Visit visit) {
    for (std::size_t expert = 0; expert + 1 < offsets.size(); ++expert) {
      const std::size_t end = offsets[expert + 1];
      for (std::size_t first = offsets[expert]; first < end; first += chunk) {
        visit(expert, first, std::min(chunk, end - first));
      }
    }
  }

  std::size_t hidden_;
  std::size_t width_;
  stacked gate_;
  stacked up_;
  stacked down_;
};

}  // namespace model
