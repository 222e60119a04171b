// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A reduction as a kernel of one element: what the ranks of a group have in their slots, added in rank order.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <cstddef>

#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// out[i] = ((s0[i] + s1[i]) + s2[i]) + ..., finished and rounded once, as `reduce_elements` of the host does it. Slot
/// q begins `stride` bytes after slot q - 1. `out` is in no slot.
template <reduction_tag Op, reducible T>
struct reduced_slots {
  const std::byte* first;
  std::size_t stride;
  int ranks;
  T* out;

  BELAY_HD void operator()(std::size_t i) const {
    using accumulator = accumulator_of<T>;
    auto total = static_cast<accumulator>(in_slot(0)[i]);
    for (int q = 1; q < ranks; ++q) total = Op::apply(total, static_cast<accumulator>(in_slot(q)[i]));
    if constexpr (finishing<Op>) total = Op::finish(total, ranks);
    out[i] = static_cast<T>(total);
  }

 private:
  [[nodiscard]] BELAY_HD const T* in_slot(int q) const {
    return reinterpret_cast<const T*>(first + static_cast<std::size_t>(q) * stride);
  }
};

}  // namespace belay::inline BELAY_ABI::cuda
