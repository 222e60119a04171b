// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rotary positions in the half-split layout: element j of a head is rotated with element j + d/2 by the angle
// position * theta^(-2j/d). The table of sines and cosines is made once, for the model's longest sequence, and shared
// by all layers. Kernels read it: over a device it lies in memory that the caller gives.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/kernel/rows.hpp"
#include "model/shapes.hpp"

namespace model {

template <class T>
class rotary {
 public:
  using number = compute_type_t<T>;

  /// Its table is its own until `use` gives it another place.
  rotary(std::size_t positions, std::size_t head_dim, double theta)
      : positions_(positions), head_dim_(head_dim), theta_(theta), own_(2 * positions * (head_dim / 2)) {
    if (head_dim % 2 != 0) throw belay::usage_error("rotary positions need an even head size", belay::where::current());
    fill(own_);
    table_ = own_.data();
  }
  rotary(const rotary&) = delete;  // layers point to it
  rotary& operator=(const rotary&) = delete;

  [[nodiscard]] std::size_t positions() const { return positions_; }
  /// Numbers of the table.
  [[nodiscard]] std::size_t size() const { return 2 * half(); }
  /// Writes the table: cosines [positions, head size / 2], then sines.
  void fill(std::span<number> table) const {
    kernel::fill_rotary_table(table.data(), table.data() + half(), positions_, head_dim_, theta_);
  }
  /// Kernels read `table`, which the caller fills, from now on.
  void use(const number* table) {
    table_ = table;
    own_ = {};
  }

  /// Rotates `heads` heads side by side in every row of numbers, and writes the rows to `out`, which is `in` where T is
  /// not narrower; row i has position i modulo `length`. A gradient is rotated by the transposed rotation.
  void apply(auto& frame, view<number, 2> in, view<T, 2> out, std::size_t heads, std::size_t length,
             kernel::rotation way) const {
    const number* const sine = table_ + half();
    const std::size_t width = in.extent(1);
    if constexpr (kernel::real<T>) {
      frame.teams(in.extent(0),
                  kernel::rotate_heads<T>{out.data(), table_, sine, width, length, heads, head_dim_, way});
    } else {
      frame.teams(in.extent(0), kernel::rotated_rows<number, T>{in.data(), out.data(), table_, sine, width, length,
                                                                heads, head_dim_, way});
    }
  }

 private:
  [[nodiscard]] std::size_t half() const { return positions_ * (head_dim_ / 2); }

  std::size_t positions_;
  std::size_t head_dim_;
  double theta_;
  const number* table_ = nullptr;
  std::vector<number> own_;
};

}  // namespace model
