// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The kernels of a device that move rows between a rank's tokens and the slots of their experts, here or on ranks whose
// memory the device addresses: a row a team. What they compute has the bits of the host's loops (rows.hpp).
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"
#include "belay/parallel/experts/layout.hpp"

namespace belay::inline BELAY_ABI {

/// A slot, and where the rows of this rank's choices lie in it, on each rank.
template <class T>
struct placed_rows {
  /// The first row of the first rank's slot, the bytes from there to the next rank's (0: all experts are here), the
  /// choices and their places [rows, k], the experts of a rank, and the elements of a row.
  T* slot;
  std::size_t apart;
  const std::int32_t* choices;
  const std::int32_t* places;
  std::size_t local;
  std::size_t k;
  std::size_t hidden;

  /// The row of choice i, or null where there was no room.
  [[nodiscard]] BELAY_HD T* row(std::size_t i) const noexcept {
    const std::int32_t place = places[i];
    if (place == no_place) return nullptr;
    T* first = slot;
    if (apart > 0) {
      const std::uint32_t owner = static_cast<std::uint32_t>(choices[i]) / static_cast<std::uint32_t>(local);
      first = reinterpret_cast<T*>(reinterpret_cast<std::byte*>(slot) + owner * apart);
    }
    return first + static_cast<std::size_t>(place) * hidden;
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
  placed_rows<T> rows;
  const T* x;
  /// Choice i.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t i) const noexcept {
    if (T* const to = rows.row(i); to != nullptr)
      kernel::for_each_index(team, rows.hidden, kernel::copy<T>{x + i / rows.k * rows.hidden, to});
  }
};

/// A token's row = the sum of those of its choices, each times its weight where weights are not null. Summed in passes
/// of four rows, then two, then one, with the sum rounded to `Target` after each, as the host does. A team does a
/// token.
template <class T, class Target>
struct pulled_rows {
  /// The type in which a row's elements are weighted and summed.
  using number = compute_type_t<T>;

  /// Where from, the weights, and the tokens' rows.
  placed_rows<T> rows;
  const number* weights;
  Target* y;

  /// One element of a token's row.
  struct element {
    /// Of which token.
    const pulled_rows* of;
    std::size_t token;
    /// Element i.
    BELAY_HD void operator()(std::size_t i) const noexcept {
      const std::size_t k = of->rows.k;
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
  /// The type in which rows and gradients are multiplied and summed.
  using number = compute_type_t<T>;

  /// Rows and weights, the tokens' gradients, and the weights'.
  placed_rows<T> rows;
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
    const Dy* const gradient = dy + i / rows.k * rows.hidden;
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

}  // namespace belay::inline BELAY_ABI
