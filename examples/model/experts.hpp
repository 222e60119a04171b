// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The experts of this rank: w2(silu(w1 x) * (w3 x)) over rows that are grouped by expert. An expert's w1 and w3 are one
// matrix, w1 above w3, so that both projections are one product. Which rows are whose is read by the kit alone, when it
// multiplies.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "belay/core/dtype.hpp"
#include "belay/kernel/rows.hpp"
#include "belay/step/frame.hpp"
#include "model/parameters.hpp"
#include "model/shapes.hpp"

namespace model {

/// The experts `first` to `first + count - 1` of a layer.
using expert_range = belay::local_part;

/// Whether their matrices are trained is in their type. Of frozen ones a backward makes the rows' gradients alone.
template <class T, belay::learning Learning = belay::trainable>
class experts {
 public:
  using number = compute_type_t<T>;

  /// Keeps gate and up projections side by side: 2 x expert width numbers for every row of the capacity. `rows` is the
  /// caller's and must live as long.
  struct residue {
    view<const T, 2> rows;
    view<T, 2> gate_up;
  };

  /// `name` ends in "experts"; all experts of the layer are one parameter a matrix, of which `local` is held.
  experts(const std::string& name, std::size_t count, std::size_t hidden, std::size_t width, expert_range local)
      : width_(width),
        gate_up_(joined_spec(name + ".w13", {count, 2 * width, hidden}, {name + ".w1", name + ".w3"}), local),
        down_(matrix_spec(name + ".w2", {count, hidden, width}), local) {}

  /// Writes `outputs` [capacity, hidden] for `rows` [capacity, hidden]; local expert e has the rows from
  /// offsets[e] to offsets[e + 1]. Rows beyond the last offset are not touched.
  [[nodiscard]] residue forward(auto& frame, view<const T, 2> rows, std::span<const std::size_t> offsets,
                                view<T, 2> outputs) {
    const residue saved{rows, keep<T>(frame, {rows.extent(0), 2 * width_})};
    const auto scope = frame.scratch_scope();
    const auto inside = scratch<T>(frame, {rows.extent(0), width_});
    const auto ends = ends_of(offsets);
    frame.grouped(saved.gate_up, rows, transposed(frame.read(gate_up_)), ends);
    frame.teams(rows.extent(0),
                kernel::swiglu_rows<T, std::size_t>{saved.gate_up.data(), inside.data(), &offsets.back(), width_});
    frame.grouped(outputs, inside, transposed(frame.read(down_)), ends);
    return saved;
  }

  /// Writes `drows` where rows were used, and adds the gradients of weights that are trained. The kept projections are
  /// overwritten by their gradients.
  void backward(auto& frame, residue&& r, std::span<const std::size_t> offsets, view<const T, 2> doutputs,
                view<T, 2> drows) {
    const auto scope = frame.scratch_scope();
    const std::size_t capacity = r.rows.extent(0);
    const auto inside = scratch<T>(frame, {capacity, width_});
    const auto ends = ends_of(offsets);
    frame.grouped(inside, doutputs, frame.read(down_), ends);
    frame.teams(capacity, kernel::swiglu_rows_again_backward<T, std::size_t>{r.gate_up.data(), inside.data(),
                                                                             &offsets.back(), width_});
    if constexpr (belay::has_gradient<Learning>) {
      frame.grouped(frame.add_to(down_), transposed(doutputs), inside, ends);
      frame.grouped(frame.add_to(gate_up_), transposed(r.gate_up), r.rows, ends);
    }
    frame.grouped(drows, r.gate_up, frame.read(gate_up_), ends);
  }

  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    visit(gate_up_);
    visit(down_);
  }

 private:
  using stacked = belay::parameter<T, belay::shard<0, belay::axis::expert>, Learning>;

  [[nodiscard]] static view<const std::size_t, 1> ends_of(std::span<const std::size_t> offsets) {
    return {offsets.data() + 1, {offsets.size() - 1}};
  }
  std::size_t width_;
  stacked gate_up_;
  stacked down_;
};

}  // namespace model
