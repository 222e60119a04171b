// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A block does one tile together: lanes with registers of their own and memory that they share. A kernel of blocks is
// written as phases: what a lane writes to shared memory is read by others in a later phase only. So a test can run
// the lanes of a phase one after the other, in any order, and a device all at once, with a barrier behind each.
//
//   struct row_totals {                                             // out[row] = the sum of row `row` of `in`
//     static constexpr unsigned lanes = 64;
//     struct shared_type { float part[lanes]; };
//     struct lane_type {};
//     const float* in;
//     float* out;
//     std::size_t width;
//     template <kernel::block Block>
//     BELAY_HD void operator()(Block& block, std::size_t row) const {
//       block.phase([&](unsigned lane, auto&) {
//         float& sum = block.shared().part[lane] = 0;
//         for (std::size_t i = lane; i < width; i += lanes) sum += in[row * width + i];
//       });
//       block.phase([&](unsigned lane, auto&) {
//         if (lane == 0) out[row] = kernel::row_sum(block.shared().part, lanes);
//       });
//     }
//   };
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// Some work of a lane in one phase: f(lane, its registers).
struct some_phase {
  /// Any phase.
  template <class Lane>
  BELAY_HD void operator()(unsigned, Lane&) const noexcept {}
};

/// Runs phases. What stands between two of them is done by all lanes alike, and so depends on no lane.
template <class B>
concept block = requires(B& b, some_phase f) {
  b.shared();
  b.phase(f);
};

/// A kernel of blocks of `lanes`, whose registers and shared memory are not initialised. It is called with a block and
/// the number of its tile.
template <class K>
concept blocked = requires {
  { K::lanes } -> std::convertible_to<unsigned>;
  requires std::is_trivially_default_constructible_v<typename K::shared_type>;
  typename K::lane_type;
}
&&std::is_trivially_copyable_v<K>;

}  // namespace belay::inline BELAY_ABI::kernel
