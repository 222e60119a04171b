// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A dispatch whose experts are all on this rank, as kernels of its device: counts, offsets and places by the kit, rows
// by row_kernels.hpp.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/view.hpp"
#include "belay/device/kit.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/experts/row_kernels.hpp"
#include "belay/parallel/routing.hpp"

namespace belay::inline BELAY_ABI {

/// Whether the frame's kit moves rows of experts that are here by kernels.
template <class Frame>
concept moves_rows_by_kernels = sorting_kit<std::remove_cvref_t<decltype(std::declval<Frame&>().kit())>>;

/// Queues the sort of a rank's choices: `places` is where each comes in the order of experts.
template <class Frame>
void sort_choices(Frame& frame, view<const std::int32_t, 2> choices, std::size_t experts,
                  view<std::int32_t, 2> places) {
  frame.kit().sort({choices.data(), {choices.size()}}, experts, {places.data(), {places.size()}});
}

/// Offsets of experts from the sums of counts, up to the capacity. The last is that of all `selections`.
struct offsets_within {
  /// The offsets [experts + 1], which are cut, the experts, all selections, and the capacity.
  std::size_t* offsets;
  std::size_t experts;
  std::size_t selections;
  std::size_t capacity;
  /// Offset i.
  BELAY_HD void operator()(std::size_t i) const noexcept {
    const std::size_t first = i == experts ? selections : offsets[i];
    offsets[i] = first < capacity ? first : capacity;
  }
};
/// Places beyond the capacity are none.
struct places_within {
  /// The places, and the capacity.
  std::int32_t* places;
  std::size_t capacity;
  /// Place i.
  BELAY_HD void operator()(std::size_t i) const noexcept {
    if (static_cast<std::size_t>(places[i]) >= capacity) places[i] = no_place;
  }
};

/// Queues the rest of a dispatch: global counts, offsets, places that there is room for, and the tokens' rows to their
/// experts. What there was no room for is noted.
template <class Frame, class Dispatch>
void dispatch_here(Frame& frame, const Dispatch& of) {
  const auto& [places, offsets, shifts, capacity, found] = of.counted;
  const std::size_t experts = of.counts.size();
  frame.each(experts, kernel::copy<std::int64_t>{of.counts.data(), of.global_counts});
  // Sums of counts are not negative, so they are the same numbers without a sign.
  frame.kit().scan(of.counts, {reinterpret_cast<std::int64_t*>(offsets), {experts}});
  frame.each(experts + 1, offsets_within{offsets, experts, of.choices, capacity});
  frame.each(of.choices, places_within{places, capacity});
  if (of.choices > capacity) frame.each(1, noted_rows{{found, {}}, of.choices});
  frame.teams(of.choices, of.kernel);
}

}  // namespace belay::inline BELAY_ABI
