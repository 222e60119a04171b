// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The experts of this rank: w2(silu(w1 x) * (w3 x)) over rows that are grouped by expert. Which rows are whose is read
// by the kit alone, when it multiplies.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/rows.hpp"
#include "belay/step/frame.hpp"
#include "model/parameters.hpp"
#include "model/shapes.hpp"

namespace model {

/// The experts `first` to `first + count - 1` of a layer.
using expert_range = belay::local_part;

template <class T>
class experts {
 public:
  /// Keeps gate and up projections: 2 x expert width numbers for every row of the capacity. `rows` is the caller's and
  /// must live as long.
  struct residue {
    view<const T, 2> rows;
    view<T, 2> gate;
    view<T, 2> up;
  };

  /// `name` ends in "experts"; all experts of the layer are one parameter a matrix, of which `local` is held.
  experts(const std::string& name, std::size_t count, std::size_t hidden, std::size_t width, expert_range local)
      : width_(width),
        gate_(matrix_spec(name + ".w1", {count, width, hidden}), local),
        up_(matrix_spec(name + ".w3", {count, width, hidden}), local),
        down_(matrix_spec(name + ".w2", {count, hidden, width}), local) {}

  /// Writes `outputs` [capacity, hidden] for `rows` [capacity, hidden]; local expert e has the rows from
  /// offsets[e] to offsets[e + 1]. Rows beyond the last offset are not touched.
  [[nodiscard]] residue forward(auto& frame, view<const T, 2> rows, std::span<const std::size_t> offsets,
                                view<T, 2> outputs) {
    const residue saved{rows, keep<T>(frame, {rows.extent(0), width_}), keep<T>(frame, {rows.extent(0), width_})};
    const auto scope = frame.scratch_scope();
    const auto inside = scratch<T>(frame, saved.gate.shape());
    const auto ends = ends_of(offsets);
    frame.grouped(saved.gate, rows, transposed(frame.read(gate_)), ends);
    frame.grouped(saved.up, rows, transposed(frame.read(up_)), ends);
    each_used(frame, kernel::silu_gate<T>{saved.gate.data(), saved.up.data(), inside.data()}, rows.extent(0), offsets);
    frame.grouped(outputs, inside, transposed(frame.read(down_)), ends);
    return saved;
  }

  /// Writes `drows` where rows were used, and adds the weights' gradients. The kept projections are overwritten by
  /// their gradients.
  void backward(auto& frame, residue&& r, std::span<const std::size_t> offsets, view<const T, 2> doutputs,
                view<T, 2> drows) {
    const auto scope = frame.scratch_scope();
    const auto inside = scratch<T>(frame, r.gate.shape());
    const auto ends = ends_of(offsets);
    T* const gate = r.gate.data();
    T* const up = r.up.data();
    frame.grouped(inside, doutputs, frame.read(down_), ends);
    each_used(frame, kernel::silu_gate_again_backward<T>{{gate, up, inside.data(), gate, up}, inside.data()},
              r.rows.extent(0), offsets);
    frame.grouped(frame.add_to(down_), transposed(doutputs), inside, ends);
    frame.grouped(frame.add_to(gate_), transposed(r.gate), r.rows, ends);
    frame.grouped(frame.add_to(up_), transposed(r.up), r.rows, ends);
    frame.grouped(drows, r.gate, frame.read(gate_), ends);
    frame.grouped(adding_to(drows), r.up, frame.read(up_), ends);
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(gate_);
    visit(up_);
    visit(down_);
  }

 private:
  using stacked = belay::parameter<T, belay::shard<0, belay::axis::expert>>;

  [[nodiscard]] static view<const std::size_t, 1> ends_of(std::span<const std::size_t> offsets) {
    return {offsets.data() + 1, {offsets.size() - 1}};
  }
  // A kernel of elements for the rows that experts have.
  template <class F>
  void each_used(auto& frame, const F& f, std::size_t capacity, std::span<const std::size_t> offsets) const {
    frame.teams(capacity, kernel::rows_in_use<F, std::size_t>{f, offsets.data() + offsets.size() - 1, width_});
  }

  std::size_t width_;
  stacked gate_;
  stacked up_;
  stacked down_;
};

}  // namespace model
