// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The kernels that move rows between a rank's tokens and the slots of their experts, here or on ranks whose memory is
// addressed or mirrored: a row a team, on hosts and on devices. A row of a slot belongs to one choice alone, so that
// rows can be moved in any order. Sums over a token's choices run in their order and have the same bits everywhere.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/non_temporal.hpp"
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

/// Offsets of experts, which are the sums of the counts before each, up to the capacity; the counts of all ranks too,
/// where there is one. A team does all.
struct counted_offsets {
  /// The counts [experts], those of all ranks and the offsets [experts + 1] to write, and the capacity.
  const std::int64_t* counts;
  std::int64_t* global_counts;
  std::size_t* offsets;
  std::size_t experts;
  std::size_t capacity;
  /// One index.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t) const noexcept {
    std::int64_t before = 0;  // those of earlier rounds of lanes
    for (std::size_t first = 0; first <= experts; first += Team::lanes) {
      const std::size_t e = first + team.lane;
      const std::int64_t own = e < experts ? counts[e] : 0;
      std::int64_t through = own;  // the counts from the round's first expert to this one
      for (unsigned step = 1; step < Team::lanes; step *= 2) {
        const std::int64_t earlier = team.from(team.lane < step ? team.lane : team.lane - step, through);
        if (team.lane >= step) through += earlier;
      }
      if (e < experts) global_counts[e] = own;
      const auto offset = static_cast<std::size_t>(before + through - own);
      if (e <= experts) offsets[e] = offset < capacity ? offset : capacity;
      before += team.from(Team::lanes - 1, through);
    }
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

/// Which places of rows a dispatch has in the end: of slots, or of a rank's packed rows.
enum class places_of : std::uint8_t { expert_slots, packed_rows };

/// A choice's place among its rank's rows, in the order of experts, and that in the slot of its expert, `shifts`
/// [experts] further on: the latter is kept of slots, the former of packed rows. Where that of the slot is beyond the
/// capacity, there is none.
struct fitted_places {
  /// The places, the choices, how far those of each expert go, the capacity, and which places are kept.
  std::int32_t* places;
  const std::int32_t* choices;
  const std::int32_t* shifts;
  std::size_t capacity;
  places_of which;
  /// Place i.
  BELAY_HD void operator()(std::size_t i) const noexcept {
    const std::int64_t place = std::int64_t{places[i]} + shifts[choices[i]];
    if (place >= static_cast<std::int64_t>(capacity))
      places[i] = no_place;
    else if (which == places_of::expert_slots)
      places[i] = static_cast<std::int32_t>(place);
  }
};

/// Rows that a rank pushes to its peers in one dispatch, in bytes, from which on they go around the caches: more than a
/// rank's part of them holds on the machines that were measured.
inline constexpr std::size_t non_temporal_from = std::size_t{24} << 20;

/// A choice's row of the slot = the row of its token. A team does a choice.
template <class T>
struct pushed_rows {
  /// Where to, and the tokens' rows; on a host, whether rows go around the caches: then `finish` follows.
  placed_rows<T> rows;
  const T* x;
  bool non_temporal = false;
  /// Choice i.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t i) const noexcept {
    T* const to = rows.row(i);
    if (to == nullptr) return;
    const T* const from = x + i / rows.k * rows.hidden;
    if constexpr (Team::lanes > 1)
      kernel::for_each_pack(team, rows.hidden, kernel::copy<T>{from, to});
    else if (non_temporal)
      kernel::copy_non_temporal(to, from, rows.hidden * sizeof(T));
    else
      std::memcpy(to, from, rows.hidden * sizeof(T));
  }
  /// On a host, after the last choice.
  void finish() const noexcept {
    if (non_temporal) kernel::finish_non_temporal();
  }
};

/// A row as a term of a sum: itself times its weight.
template <class T>
struct weighted_row {
  /// The row, and its weight.
  const T* row;
  compute_type_t<T> weight;
  /// Element i of the term.
  [[nodiscard]] BELAY_HD compute_type_t<T> operator[](std::size_t i) const noexcept {
    return weight * kernel::widened(row[i]);
  }
};
/// A row as a term of a sum: itself.
template <class T>
struct plain_row {
  /// The row.
  const T* row;
  /// Element i of the term.
  [[nodiscard]] BELAY_HD compute_type_t<T> operator[](std::size_t i) const noexcept { return kernel::widened(row[i]); }
};

/// Whether rows begin a sum, or add to one.
enum class summing : std::uint8_t { begins, goes_on };

/// target = the sum of `Count` rows, or target += it, in one pass: each element is summed in the order of the rows. Few
/// rows a pass, so that the processor's prefetchers follow all of them.
template <summing How, std::size_t Count, class T, class Row>
BELAY_HD inline void add_rows(T* __restrict target, const Row* rows, std::size_t hidden) {
  Row row[Count];
  for (std::size_t j = 0; j < Count; ++j) row[j] = rows[j];
  for (std::size_t i = 0; i < hidden; ++i) {
    auto total = How == summing::begins ? row[0][i] : kernel::widened(target[i]) + row[0][i];
    for (std::size_t j = 1; j < Count; ++j) total += row[j][i];
    target[i] = static_cast<T>(total);
  }
}

/// A token's row = the sum of those of its choices, each times its weight where weights are not null. Summed in passes
/// of four rows, then two, then one, with the sum rounded to `Target` after each. Where `beside` is not null, the
/// token's row of it is added last. A team does a token.
template <class T, class Target>
struct pulled_rows {
  /// The type in which a row's elements are weighted and summed.
  using number = compute_type_t<T>;

  /// Where from, the weights, the tokens' rows, and what went around the experts, in memory of its own.
  placed_rows<T> rows;
  const number* weights;
  Target* y;
  const Target* beside = nullptr;

  /// Elements of a token's row, for a team of several lanes.
  struct element {
    /// Of which token.
    const pulled_rows* of;
    std::size_t token;
    /// Element i.
    BELAY_HD void operator()(std::size_t i) const noexcept { add<1>(i); }

    /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all rows are aligned for that.
    static constexpr std::size_t indices_of_pack = kernel::pack_size<T, Target>;
    [[nodiscard]] BELAY_HD bool packs() const noexcept {
      const placed_rows<T>& from = of->rows;
      return kernel::are_packs<indices_of_pack>(from.slot, of->y, of->beside) && from.hidden % indices_of_pack == 0 &&
             from.apart % alignof(kernel::pack_of<T, indices_of_pack>) == 0;
    }
    BELAY_HD void pack(std::size_t i) const noexcept { add<indices_of_pack>(i); }

   private:
    template <std::size_t Count>
    BELAY_HD void add(std::size_t i) const noexcept {
      const std::size_t k = of->rows.k;
      std::size_t left = 0;
      for (std::size_t j = 0; j < k; ++j) left += of->rows.row(token * k + j) != nullptr ? 1U : 0U;
      number totals[Count] = {};
      kernel::pack_of<Target, Count> rounded;
      for (std::size_t e = 0; e < Count; ++e) rounded.of[e] = static_cast<Target>(totals[e]);
      for (std::size_t j = 0, done = 0, pass = 0; j < k; ++j) {
        const T* const row = of->rows.row(token * k + j);
        if (row == nullptr) continue;
        const kernel::pack_of<T, Count> own = kernel::load_pack<Count>(row, i);
        const number weight = of->weights == nullptr ? number(1) : of->weights[token * k + j];
        for (std::size_t e = 0; e < Count; ++e) {
          const number more = weight * kernel::widened(own.of[e]);
          totals[e] = done == 0 ? more : totals[e] + more;
        }
        if (done++ == pass) pass += left - pass >= 4 ? 4 : left - pass >= 2 ? 2 : 1;
        if (done != pass) continue;
        for (std::size_t e = 0; e < Count; ++e) {
          rounded.of[e] = static_cast<Target>(totals[e]);
          totals[e] = kernel::widened(rounded.of[e]);
        }
      }
      const std::size_t first = token * of->rows.hidden;
      if (of->beside != nullptr) {
        const kernel::pack_of<Target, Count> around = kernel::load_pack<Count>(of->beside + first, i);
        for (std::size_t e = 0; e < Count; ++e)
          rounded.of[e] = static_cast<Target>(kernel::widened(rounded.of[e]) + kernel::widened(around.of[e]));
      }
      kernel::store_pack(rounded, of->y + first, i);
    }
  };

  /// Token `token`.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t token) const noexcept {
    if constexpr (Team::lanes > 1)
      kernel::for_each_pack(team, rows.hidden, element{this, token});
    else if (weights == nullptr)
      sum_token(token, [](const T* row, std::size_t) { return plain_row<T>{row}; });
    else
      sum_token(token, [w = weights](const T* row, std::size_t i) { return weighted_row<T>{row, w[i]}; });
    if constexpr (Team::lanes == 1) {
      if (beside == nullptr) return;
      Target* const row = y + token * rows.hidden;
      kernel::for_each_index(team, rows.hidden, kernel::add<Target>{row, beside + token * rows.hidden, row});
    }
  }

 private:
  // Each row as `term(row, choice)`; zeros where there is none.
  template <class Term>
  BELAY_HD void sum_token(std::size_t token, const Term& term) const noexcept {
    using term_type = decltype(term(static_cast<const T*>(nullptr), std::size_t{}));
    constexpr std::size_t pass = 4;
    Target* const target = y + token * rows.hidden;
    term_type terms[pass];
    std::size_t count = 0;
    summing how = summing::begins;
    for (std::size_t j = 0; j < rows.k; ++j) {
      const T* const row = rows.row(token * rows.k + j);
      if (row == nullptr) continue;
      terms[count++] = term(row, token * rows.k + j);
      if (count < pass) continue;
      add_terms<pass>(target, terms, how);
      count = 0;
    }
    const term_type* left = terms;
    if (count >= 2) {
      add_terms<2>(target, left, how);
      left += 2;
      count -= 2;
    }
    if (count == 1) add_terms<1>(target, left, how);
    if (how == summing::begins) std::memset(target, 0, rows.hidden * sizeof(Target));
  }
  template <std::size_t Count, class Term>
  BELAY_HD void add_terms(Target* target, const Term* terms, summing& how) const noexcept {
    if (how == summing::begins)
      add_rows<summing::begins, Count>(target, terms, rows.hidden);
    else
      add_rows<summing::goes_on, Count>(target, terms, rows.hidden);
    how = summing::goes_on;
  }
};

/// The gradient of a choice's weight, the inner product of its row and its token's gradient; then the row = that
/// gradient times the weight, so that the gradient needs neither a slot nor a synchronisation of its own. A team does a
/// choice. Gradients may be wider.
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

    /// Indices that `pack(i)` does at once, from i on; `packs()` says whether both arrays are aligned for that.
    static constexpr std::size_t indices_of_pack = kernel::pack_size<T, Dy>;
    [[nodiscard]] BELAY_HD bool packs() const noexcept { return kernel::are_packs<indices_of_pack>(gradient, row); }
    BELAY_HD void pack(std::size_t i) const noexcept {
      const auto from = kernel::load_pack<indices_of_pack>(gradient, i);
      kernel::pack_of<T, indices_of_pack> to;
      kernel::run_pack<indices_of_pack>(element{weight, from.of, to.of});
      kernel::store_pack(to, row, i);
    }
  };

  /// Choice i.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t i) const noexcept {
    T* const row = rows.row(i);
    const Dy* const gradient = dy + i / rows.k * rows.hidden;
    number total = 0;
    if constexpr (Team::lanes == 1) {
      if (row != nullptr) total = return_row(row, gradient, weights[i]);
    } else if (row != nullptr) {
      const std::size_t whole = rows.hidden / kernel::sum_lanes * kernel::sum_lanes;
      for (std::size_t c = whole; c < rows.hidden; ++c) total += kernel::widened(gradient[c]) * kernel::widened(row[c]);
      const auto lanes = kernel::summed_lanes<number>(team, kernel::products_of<number, Dy, T>{gradient, row}, whole);
      for (unsigned lane = 0; lane < kernel::sum_lanes; ++lane) total += team.from(lanes.place_of(lane), lanes.mine);
      team.synchronize();  // the row is overwritten from here on
      kernel::for_each_pack(team, rows.hidden, element{weights[i], gradient, row});
    }
    if (team.lane == 0) dweights[i] = total;
  }

 private:
  // In one pass. A fixed number of partial sums vectorises without allowing the compiler to reorder sums.
  BELAY_HD number return_row(T* __restrict row, const Dy* __restrict gradient, number weight) const noexcept {
    number total = 0;
    number partial[kernel::sum_lanes] = {};
    std::size_t i = 0;
    for (; i + kernel::sum_lanes <= rows.hidden; i += kernel::sum_lanes) {
      for (std::size_t lane = 0; lane < kernel::sum_lanes; ++lane) {
        const number d = kernel::widened(gradient[i + lane]);
        partial[lane] += d * kernel::widened(row[i + lane]);
        row[i + lane] = static_cast<T>(weight * d);
      }
    }
    for (; i < rows.hidden; ++i) {
      const number d = kernel::widened(gradient[i]);
      total += d * kernel::widened(row[i]);
      row[i] = static_cast<T>(weight * d);
    }
    for (std::size_t lane = 0; lane < kernel::sum_lanes; ++lane) total += partial[lane];
    return total;
  }
};

}  // namespace belay::inline BELAY_ABI
