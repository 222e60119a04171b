// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rotary positions in the half-split layout: element j of a head is rotated with element j + d/2 by the angle
// position * theta^(-2j/d). The table of sines and cosines is made once, for the model's longest sequence, and shared
// by all layers.
#pragma once

#include <cstddef>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/kernel/rows.hpp"
#include "model/shapes.hpp"

namespace model {

template <class T>
class rotary {
 public:
  using number = compute_type_t<T>;

  rotary(std::size_t positions, std::size_t head_dim, double theta)
      : positions_(positions),
        head_dim_(head_dim),
        cosines_(positions * (head_dim / 2)),
        sines_(positions * (head_dim / 2)) {
    if (head_dim % 2 != 0) throw belay::usage_error("rotary positions need an even head size", belay::where::current());
    kernel::fill_rotary_table(cosines_.data(), sines_.data(), positions, head_dim, theta);
  }

  [[nodiscard]] std::size_t positions() const { return positions_; }

  /// Rotates `heads` heads side by side in every row; row i has position i modulo `length`. A gradient is rotated by
  /// the transposed rotation.
  template <class Rows>
  void apply(auto& frame, operand<Rows> rows, std::size_t heads, std::size_t length, kernel::rotation way) const {
    frame.teams(rows.rows, kernel::rotate_heads<Rows>{rows.data, cosines_.data(), sines_.data(), rows.stride, length,
                                                      heads, head_dim_, way});
  }

 private:
  std::size_t positions_;
  std::size_t head_dim_;
  std::vector<number> cosines_;  // [positions, head size / 2]
  std::vector<number> sines_;
};

}  // namespace model
