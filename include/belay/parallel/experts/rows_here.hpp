// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A dispatch whose experts are all on this rank, as kernels of its device: counts, offsets and places by the kit, a row
// of tokens a team. What they compute has the bits of the host's loops.
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
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/routing.hpp"

namespace belay::inline BELAY_ABI {

/// Whether the frame's kit moves rows of experts that are here by kernels.
template <class Frame>
concept moves_rows_by_kernels = sorting_kit<std::remove_cvref_t<decltype(std::declval<Frame&>().kit())>>;

/// One dispatch and one of its slots, whose first row `slot` is.
template <class T>
struct rows_here {
  /// The routing; where each choice's row lies, and the experts' first rows; the rows that there is room for; a row's
  /// elements; the slot.
  routing<compute_type_t<T>> routed;
  view<std::int32_t, 2> places;
  view<std::size_t, 1> offsets;
  std::size_t capacity;
  std::size_t hidden;
  T* slot;

  /// The row of choice i, or null where there was no room.
  [[nodiscard]] BELAY_HD T* row(std::size_t i) const noexcept {
    const std::int32_t place = places.data()[i];
    return place == no_place ? nullptr : slot + static_cast<std::size_t>(place) * hidden;
  }
};

/// Offsets of experts from the sums of counts, up to the capacity. The last is that of all `selections`.
struct offsets_within {
  /// What is cut, their number but one, all selections, and the capacity.
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
/// Notes, once, how many rows would have been needed.
struct noted_rows {
  /// Where, and how many.
  kernel::findings_note found;
  std::uint64_t rows;
  /// One index.
  BELAY_HD void operator()(std::size_t) const noexcept { found.need_rows(rows); }
};

/// A choice's row of the slot = the row of its token. A team does a choice.
template <class T>
struct pushed_rows {
  /// Where to, and the tokens' rows.
  rows_here<T> rows;
  const T* x;
  /// Choice i.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t i) const noexcept {
    if (T* const to = rows.row(i); to != nullptr)
      kernel::for_each_index(team, rows.hidden, kernel::copy<T>{x + i / rows.routed.k * rows.hidden, to});
  }
};

/// A token's row = the sum of those of its choices, each times its weight where weights are not null. Summed in passes
/// of four rows, then two, then one, with the sum rounded to `Target` after each, as the host does. A team does a
/// token.
template <class T, class Target>
struct pulled_rows {
  /// What is computed with.
  using number = compute_type_t<T>;

  /// Where from, the weights, and the tokens' rows.
  rows_here<T> rows;
  const number* weights;
  Target* y;

  /// One element of a token's row.
  struct element {
    /// Of which token.
    const pulled_rows* of;
    std::size_t token;
    /// Element i.
    BELAY_HD void operator()(std::size_t i) const noexcept {
      const std::size_t k = of->rows.routed.k;
      std::size_t left = 0;
      for (std::size_t j = 0; j < k; ++j) left += of->rows.row(token * k + j) != nullptr ? 1U : 0U;
      number total = 0;
      Target rounded = static_cast<Target>(total);
      for (std::size_t j = 0, done = 0, pass = 0; j < k; ++j) {
        const T* const row = of->rows.row(token * k + j);
        if (row == nullptr) continue;
        const number own = kernel::widened(row[i]);
        const number more = of->weights == nullptr ? own : of->weights[token * k + j] * own;
        total = done == 0 ? more : total + more;
        if (done++ == pass) pass += left - pass >= 4 ? 4 : left - pass >= 2 ? 2 : 1;
        if (done != pass) continue;
        rounded = static_cast<Target>(total);
        total = kernel::widened(rounded);
      }
      of->y[token * of->rows.hidden + i] = rounded;
    }
  };

  /// Token `token`.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t token) const noexcept {
    kernel::for_each_index(team, rows.hidden, element{this, token});
  }
};

/// The gradient of a choice's weight, the inner product of its row and its token's gradient; then the row = that
/// gradient times the weight. A team does a choice; sums have the order of the host's. Gradients may be wider.
template <class T, class Dy = T>
struct returned_rows {
  /// What is computed with.
  using number = compute_type_t<T>;

  /// Rows and weights, the tokens' gradients, and the weights'.
  rows_here<T> rows;
  const number* weights;
  const Dy* dy;
  number* dweights;

  /// row[i] = weight * dy[i].
  struct element {
    /// The weight, the token's gradient, and the row.
    number weight;
    const Dy* gradient;
    T* row;
    /// Element i.
    BELAY_HD void operator()(std::size_t i) const noexcept {
      row[i] = static_cast<T>(weight * kernel::widened(gradient[i]));
    }
  };

  /// Choice i.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t i) const noexcept {
    T* const row = rows.row(i);
    const Dy* const gradient = dy + i / rows.routed.k * rows.hidden;
    number total = 0;
    if (row != nullptr) {
      const std::size_t whole = rows.hidden / kernel::sum_lanes * kernel::sum_lanes;
      for (std::size_t c = whole; c < rows.hidden; ++c) total += kernel::widened(gradient[c]) * kernel::widened(row[c]);
      if constexpr (Team::lanes == 1) {
        number partial[kernel::sum_lanes] = {};
        for (std::size_t c = 0; c < whole; ++c)
          partial[c % kernel::sum_lanes] += kernel::widened(gradient[c]) * kernel::widened(row[c]);
        for (const number part : partial) total += part;
      } else {
        number partial = 0;
        for (std::size_t c = team.lane % kernel::sum_lanes; c < whole; c += kernel::sum_lanes)
          partial += kernel::widened(gradient[c]) * kernel::widened(row[c]);
        for (unsigned lane = 0; lane < kernel::sum_lanes; ++lane) total += team.from(lane, partial);
      }
      team.synchronize();  // the row is overwritten from here on
      kernel::for_each_index(team, rows.hidden, element{weights[i], gradient, row});
    }
    if (team.lane == 0) dweights[i] = total;
  }
};

/// Queues a dispatch: global counts, offsets, places, and the tokens' rows to their experts. `found` gets how many rows
/// there was no room for.
template <class Frame, class T>
void dispatch_here(Frame& frame, const rows_here<T>& rows, const T* x, const kernel::findings_note& found) {
  const std::size_t selections = rows.places.size(), experts = rows.routed.experts;
  auto& kit = frame.kit();
  frame.each(experts, kernel::copy<std::int64_t>{rows.routed.counts.data(), rows.routed.global_counts.data()});
  // Sums of counts are not negative, so they are the same numbers without a sign.
  kit.scan({rows.routed.counts.data(), {experts}}, {reinterpret_cast<std::int64_t*>(rows.offsets.data()), {experts}});
  frame.each(experts + 1, offsets_within{rows.offsets.data(), experts, selections, rows.capacity});
  kit.sort({rows.routed.choices.data(), {selections}}, experts, {rows.places.data(), {selections}});
  frame.each(selections, places_within{rows.places.data(), rows.capacity});
  if (selections > rows.capacity) frame.each(1, noted_rows{found, selections});
  frame.teams(selections, pushed_rows<T>{rows, x});
}
/// Queues y = the sum of each token's rows, times their weights.
template <class Frame, class T, class Y>
void combine_here(Frame& frame, const rows_here<T>& rows, Y* y) {
  frame.teams(rows.routed.rows, pulled_rows<T, Y>{rows, rows.routed.weights.data(), y});
}
/// Queues the gradients of weights, and of the experts' outputs in their place.
template <class Frame, class T, class Dy>
void return_here(Frame& frame, const rows_here<T>& rows, const Dy* dy, compute_type_t<T>* dweights) {
  frame.teams(rows.places.size(), returned_rows<T, Dy>{rows, rows.routed.weights.data(), dy, dweights});
}
/// Queues dx = the sum of the gradients of each token's rows.
template <class Frame, class T, class Dx>
void finish_here(Frame& frame, const rows_here<T>& rows, Dx* dx) {
  frame.teams(rows.routed.rows, pulled_rows<T, Dx>{rows, nullptr, dx});
}

}  // namespace belay::inline BELAY_ABI
