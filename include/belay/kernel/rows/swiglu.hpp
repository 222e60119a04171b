// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The activation of a SwiGLU over rows that hold the gate's projection and the other one side by side, as one product
// writes them.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <concepts>
#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// out = silu(gate) * up for the rows below `*used`, which is read when it runs. `out` may be wider.
template <stored_real T, std::integral Index, stored_real Out = T>
struct swiglu_rows {
  const T* gate_up;  // [rows, 2 * width]: gate, then up
  Out* out;          // [rows, width]
  const Index* used;
  std::size_t width;

  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    if (row >= static_cast<std::size_t>(*used)) return;
    const T* const gate = gate_up + 2 * row * width;
    for_each_pack(team, width, silu_gate<T, Out>{gate, gate + width, out + row * width});
  }
};

/// Replaces `gate_up` by its gradient and the output's gradient by the output, for the rows below `*used`.
template <stored_real T, std::integral Index>
struct swiglu_rows_again_backward {
  T* gate_up;  // [rows, 2 * width]
  T* out;      // [rows, width]
  const Index* used;
  std::size_t width;

  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    if (row >= static_cast<std::size_t>(*used)) return;
    T* const gate = gate_up + 2 * row * width;
    T* const up = gate + width;
    T* const y = out + row * width;
    for_each_pack(team, width, silu_gate_again_backward<T>{{gate, up, y, gate, up}, y});
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
