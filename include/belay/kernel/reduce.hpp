// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Sums whose bits depend on the values and their order only: not on the machine's vector width, the number of threads,
// or where a range was cut, as long as it was cut between chunks. Elements go to sixteen lanes by their index, lanes
// are folded in a fixed tree, and chunks in ascending order. The gradient norm is made of these sums, so it is the
// same on every mesh that reduces the same gradients.
//
//   const double norm = std::sqrt(belay::kernel::sum_of_squares(gradient, count));
//   const bool usable = belay::kernel::are_finite(gradient, count);
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/finite.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// Elements that are summed in lanes before the result is added to a running sum. A longer row has a block on a device.
inline constexpr std::size_t sum_chunk = 4096;
inline constexpr std::size_t sum_lanes = 16;

/// Chunks of a range; the last may be shorter.
[[nodiscard]] BELAY_HD constexpr std::size_t chunk_count(std::size_t count) noexcept {
  return (count + sum_chunk - 1) / sum_chunk;
}

/// A term that makes those of some consecutive indices at once, where its arrays are aligned for packs: `pack(i)` gives
/// a `pack_of` the terms of [i, i + `indices_of_pack`).
template <class Term>
concept packed_term = requires(const Term& term, std::size_t i) {
  { Term::indices_of_pack } -> std::convertible_to<std::size_t>;
  { term.packs() } -> std::same_as<bool>;
  term.pack(i);
};
/// term(0) ... term(Count - 1), of arrays that are in registers.
template <class Sum, std::size_t Count, class Term>
[[nodiscard]] BELAY_HD pack_of<Sum, Count> terms_of(const Term& term) noexcept {
  pack_of<Sum, Count> out;
  run_pack<Count>([&](std::size_t i) { out.of[i] = static_cast<Sum>(term(i)); });
  return out;
}

/// The term of an index, as `Sum`. Squares and products of floats are exact in double, so it changes nothing whether
/// the compiler fuses them with the addition.
template <class Sum, stored_real T>
struct values_of {
  /// Term i.
  const T* x;
  BELAY_HD constexpr Sum operator()(std::size_t i) const noexcept { return static_cast<Sum>(x[i]); }

  /// Terms that `pack(i)` makes at once, from i on; `packs()` says whether the array is aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(x); }
  [[nodiscard]] BELAY_HD auto pack(std::size_t i) const noexcept {
    const auto own = load_pack<indices_of_pack>(x, i);
    return terms_of<Sum, indices_of_pack>(values_of{own.of});
  }
};
/// Terms of a sum: the products of two arrays.
template <class Sum, stored_real T, stored_real U = T>
struct products_of {
  /// Term i.
  const T* x;
  const U* y;
  BELAY_HD constexpr Sum operator()(std::size_t i) const noexcept {
    return static_cast<Sum>(x[i]) * static_cast<Sum>(y[i]);
  }

  /// Terms that `pack(i)` makes at once, from i on; `packs()` says whether both arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T, U>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(x, y); }
  [[nodiscard]] BELAY_HD auto pack(std::size_t i) const noexcept {
    const auto of_x = load_pack<indices_of_pack>(x, i);
    const auto of_y = load_pack<indices_of_pack>(y, i);
    return terms_of<Sum, indices_of_pack>(products_of{of_x.of, of_y.of});
  }
};

/// `seen` of `length` elements, and as many more as fill a vector: what is computed beyond `seen` is overwritten by 0.
/// An element at the end of a loop costs as much as a whole vector.
[[nodiscard]] BELAY_HD constexpr std::size_t whole_vectors(std::size_t seen, std::size_t length) noexcept {
  const std::size_t some = (seen + sum_lanes - 1) / sum_lanes * sum_lanes;
  return some < length ? some : length;
}

/// The sum of the sixteen lanes of a sum, which are added in halves; they are overwritten.
template <class Sum>
[[nodiscard]] BELAY_HD constexpr Sum folded_lanes(Sum (&lane)[sum_lanes]) noexcept {
  for (std::size_t width = sum_lanes / 2; width > 0; width /= 2) {
    for (std::size_t l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

/// Sums `term(0) ... term(count - 1)` of a chunk in sixteen lanes: element i goes to lane i modulo 16. Then lanes are
/// added in halves.
template <class Sum, class Term>
[[nodiscard]] BELAY_HD constexpr Sum sum_of_chunk(Term term, std::size_t count) noexcept {
  Sum lane[sum_lanes] = {};
  const std::size_t whole = count - count % sum_lanes;
  for (std::size_t i = 0; i < whole; i += sum_lanes) {
    for (std::size_t l = 0; l < sum_lanes; ++l) lane[l] += term(i + l);
  }
  for (std::size_t l = 0; l < sum_lanes; ++l) {  // a constant bound keeps the lanes in registers
    if (l < count - whole) lane[l] += term(whole + l);
  }
  return folded_lanes(lane);
}

/// The terms of a range from `first` on, which is where a chunk begins.
template <class Term>
struct terms_from {
  /// The terms of the range.
  Term all;
  std::size_t first;
  /// Term i.
  BELAY_HD constexpr auto operator()(std::size_t i) const noexcept { return all(first + i); }

  /// Terms that `pack(i)` makes at once, from i on, where the range has such.
  static constexpr std::size_t indices_of_pack = [] {
    if constexpr (packed_term<Term>) return std::size_t{Term::indices_of_pack};
    return std::size_t{1};
  }();
  [[nodiscard]] BELAY_HD bool packs() const noexcept requires packed_term<Term> { return all.packs(); }
  [[nodiscard]] BELAY_HD auto pack(std::size_t i) const noexcept requires packed_term<Term> {
    return all.pack(first + i);
  }
};

/// Sums `term(0) ... term(count - 1)`: chunks of `sum_chunk` in sixteen lanes each, and these one after the other.
template <class Sum, class Term>
[[nodiscard]] BELAY_HD constexpr Sum sum_in_lanes(Term term, std::size_t count) noexcept {
  if (count <= sum_chunk) [[likely]]
    return sum_of_chunk<Sum>(term, count);
  Sum total = 0;
  for (std::size_t first = 0; first < count; first += sum_chunk)
    total += sum_of_chunk<Sum>(terms_from<Term>{term, first}, count - first < sum_chunk ? count - first : sum_chunk);
  return total;
}

/// The sixteen lanes of a sum in a team: each of its lanes has one, and what it has summed. Where a lane reads packs of
/// P elements, lane a + c * 16 / P of the team has lane a * P + c of the sum.
template <class Sum>
struct lanes_in_team {
  /// The sum of one lane, and P; 1 where elements are read one by one.
  Sum mine;
  unsigned pack;

  /// The lane of a sum that a lane of a team has, and the first lane of the team that has a lane of the sum.
  [[nodiscard]] BELAY_HD static constexpr unsigned lane_of(unsigned own, unsigned pack) noexcept {
    const unsigned apart = sum_lanes / pack, place = own % sum_lanes;
    return place % apart * pack + place / apart;
  }
  [[nodiscard]] BELAY_HD constexpr unsigned place_of(unsigned lane) const noexcept {
    return lane / pack + lane % pack * (static_cast<unsigned>(sum_lanes) / pack);
  }
  /// The sum of all lanes, which are added in halves. Every lane of the team gets it.
  template <team Team>
  [[nodiscard]] BELAY_HD constexpr Sum folded(const Team& team) const noexcept {
    Sum sum = mine;
    for (unsigned width = sum_lanes / 2; width > 0; width /= 2)
      sum += team.from((team.lane + place_of(width)) % Team::lanes, sum);
    return team.from(0, sum);
  }
};

/// Lanes of a warp have read packs of terms that follow each other. Turns those of each half of the warp, so that a
/// lane has the terms of one lane of a sum: from the first sixteen elements of the half on, sixteen apart.
template <team Team, class Sum, std::size_t Pack>
BELAY_HD void turn_packs(const Team& team, pack_of<Sum, Pack>& terms) noexcept {
  for (unsigned half = 1; half < Pack; half *= 2) {
    const unsigned away = half * (static_cast<unsigned>(sum_lanes) / Pack);
    const bool upper = (team.lane & away) != 0;
    run_pack<Pack>([&](std::size_t e) {
      if ((e & half) != 0) return;
      Sum &first = terms.of[e], &second = terms.of[e + half];
      const Sum sent = upper ? first : second, got = team.from(team.lane ^ away, sent);
      first = upper ? got : first;
      second = upper ? second : got;
    });
  }
}

/// The lanes of the sum of `term(0) ... term(count - 1)` in a team, each to the bits of the host's. In a warp all lanes
/// read, by packs where the arrays are aligned for them, and the upper half hands its terms to the lower one, whose
/// sums count.
template <class Sum, team Team, class Term>
[[nodiscard]] BELAY_HD constexpr lanes_in_team<Sum> summed_lanes(const Team& team, const Term& term,
                                                                 std::size_t count) noexcept {
  static_assert(Team::lanes == sum_lanes || Team::lanes == 2 * sum_lanes);
  lanes_in_team<Sum> lanes{0, 1};
  std::size_t whole = 0;
  if constexpr (packed_term<Term> && Team::lanes == 2 * sum_lanes) {
    constexpr std::size_t pack = Term::indices_of_pack, step = Team::lanes * pack;
    if (count > 0 && by_packs(team, takes_packs(term, count))) {
      lanes.pack = pack;
      whole = count - count % pack;
      for (std::size_t first = 0; first < whole; first += step) {
        const std::size_t i = first + team.lane * pack;
        auto terms = i < whole ? term.pack(i) : pack_of<Sum, pack>{};  // a sum stays what it is where 0 is added
        turn_packs(team, terms);
        run_pack<pack>([&](std::size_t e) { lanes.mine += terms.of[e]; });
        run_pack<pack>([&](std::size_t e) {
          lanes.mine += team.from((team.lane + static_cast<unsigned>(sum_lanes)) % Team::lanes, terms.of[e]);
        });
      }
    }
  }
  std::size_t i = whole - whole % sum_lanes + lanes_in_team<Sum>::lane_of(team.lane, lanes.pack);
  if (i < whole) i += sum_lanes;
  for (; i < count; i += sum_lanes) lanes.mine += static_cast<Sum>(term(i));
  return lanes;
}

/// Sums `term(0) ... term(count - 1)` by a team, to the bits of one thread: the lanes of a warp have those of a chunk's
/// sum, and the warps of a block take chunks in turn. Every lane gets the sum.
template <class Sum, team Team, class Term>
[[nodiscard]] BELAY_HD constexpr Sum sum_in_lanes(const Team& team, Term term, std::size_t count) noexcept {
  if constexpr (Team::lanes == 1) {
    return sum_in_lanes<Sum>(term, count);
  } else {
    const auto of_chunk = [&](const auto& by, std::size_t first) {
      const std::size_t size = count - first < sum_chunk ? count - first : sum_chunk;
      return summed_lanes<Sum>(by, terms_from<Term>{term, first}, size).folded(by);
    };
    Sum total = 0;
    if constexpr (divided_team<Team>) {
      const std::size_t parts = Team::lanes / Team::part_type::lanes;
      for (std::size_t first = 0; first < count; first += parts * sum_chunk) {
        const std::size_t mine = first + team.lane / Team::part_type::lanes * sum_chunk;
        const Sum sum = mine < count ? of_chunk(team.part(), mine) : Sum(0);
        for (std::size_t p = 0; p < parts && first + p * sum_chunk < count; ++p)
          total += team.from(static_cast<unsigned>(p) * Team::part_type::lanes, sum);
      }
    } else {
      for (std::size_t first = 0; first < count; first += sum_chunk) total += of_chunk(team, first);
    }
    return total;
  }
}

/// Sums `term(0) ... term(count - 1)` one after the other, for few of them: lanes make the terms at once and hand them
/// round. Every lane gets the sum.
template <class Sum, team Team, class Term>
[[nodiscard]] BELAY_HD constexpr Sum sum_in_order(const Team& team, Term term, std::size_t count) noexcept {
  Sum sum = 0;
  for (std::size_t first = 0; first < count; first += Team::lanes) {
    const Sum mine = first + team.lane < count ? static_cast<Sum>(term(first + team.lane)) : Sum(0);
    for (unsigned lane = 0; lane < Team::lanes && first + lane < count; ++lane) sum += team.from(lane, mine);
  }
  return sum;
}

/// The sum of squares of one chunk per index, or per row of a team: `out[c]` for `c < chunk_count(count)`. The pieces
/// of a range that was cut at multiples of `sum_chunk` give the same numbers. Added in order they are `sum_of_squares`.
template <real T>
struct chunk_sums_of_squares {
  /// The values, how many there are, and one sum a chunk.
  const T* x;
  std::size_t count;
  double* out;
  BELAY_HD constexpr void operator()(std::size_t chunk) const noexcept { (*this)(solo{}, chunk); }
  /// By a team, to the same bits.
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t chunk) const noexcept {
    const std::size_t first = chunk * sum_chunk;
    const std::size_t size = count - first < sum_chunk ? count - first : sum_chunk;
    const double sum = sum_in_lanes<double>(team, products_of<double, T>{x + first, x + first}, size);
    if (team.lane == 0) out[chunk] = sum;
  }
};

/// x[0] + ... + x[count - 1] in double.
template <real T>
[[nodiscard]] BELAY_HD constexpr double sum(const T* x, std::size_t count) noexcept {
  return sum_in_lanes<double>(values_of<double, T>{x}, count);
}

/// The inner product in double.
template <real T>
[[nodiscard]] BELAY_HD constexpr double dot(const T* x, const T* y, std::size_t count) noexcept {
  return sum_in_lanes<double>(products_of<double, T>{x, y}, count);
}

/// The square of the Euclidean norm, in double.
template <real T>
[[nodiscard]] BELAY_HD constexpr double sum_of_squares(const T* x, std::size_t count) noexcept {
  return sum_in_lanes<double>(products_of<double, T>{x, x}, count);
}

/// Sums over one row in the type in which its elements are computed.
template <real T>
[[nodiscard]] BELAY_HD constexpr T row_sum(const T* x, std::size_t width) noexcept {
  return sum_in_lanes<T>(values_of<T, T>{x}, width);
}
template <stored_real T>
[[nodiscard]] BELAY_HD constexpr compute_type_t<T> row_dot(const T* x, const T* y, std::size_t width) noexcept {
  return sum_in_lanes<compute_type_t<T>>(products_of<compute_type_t<T>, T>{x, y}, width);
}

/// Sums over one row by all lanes of a team, in one order for any number of lanes; the products of two rows.
template <team Team, real T>
[[nodiscard]] BELAY_HD constexpr T row_sum(const Team& team, const T* x, std::size_t width) noexcept {
  return sum_in_lanes<T>(team, values_of<T, T>{x}, width);
}
template <team Team, stored_real T>
[[nodiscard]] BELAY_HD constexpr compute_type_t<T> row_dot(const Team& team, const T* x, const T* y,
                                                           std::size_t width) noexcept {
  return sum_in_lanes<compute_type_t<T>>(team, products_of<compute_type_t<T>, T>{x, y}, width);
}

/// Terms of a maximum: absolute values.
template <real T>
struct magnitudes_of {
  /// Term i.
  const T* x;
  BELAY_HD constexpr T operator()(std::size_t i) const noexcept { return magnitude(x[i]); }

  /// Terms that `pack(i)` makes at once, from i on; `packs()` says whether the array is aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(x); }
  [[nodiscard]] BELAY_HD auto pack(std::size_t i) const noexcept {
    const auto own = load_pack<indices_of_pack>(x, i);
    return terms_of<T, indices_of_pack>(magnitudes_of{own.of});
  }
};

/// The largest of `floor` and `term(0) ... term(count - 1)`. NaNs are ignored.
template <real T, class Term>
[[nodiscard]] BELAY_HD constexpr T maximum_in_lanes(Term term, std::size_t count, T floor) noexcept {
  T lane[sum_lanes] = {};
  for (std::size_t l = 0; l < sum_lanes; ++l) lane[l] = floor;
  const std::size_t whole = count - count % sum_lanes;
  for (std::size_t i = 0; i < whole; i += sum_lanes) {
    for (std::size_t l = 0; l < sum_lanes; ++l) {
      const T value = term(i + l);
      lane[l] = value > lane[l] ? value : lane[l];
    }
  }
  for (std::size_t l = 0; l < sum_lanes; ++l) {
    const T value = l < count - whole ? term(whole + l) : floor;
    lane[l] = value > lane[l] ? value : lane[l];
  }
  for (std::size_t width = sum_lanes / 2; width > 0; width /= 2) {
    for (std::size_t l = 0; l < width; ++l) lane[l] = lane[l + width] > lane[l] ? lane[l + width] : lane[l];
  }
  return lane[0];
}

/// The largest of `floor` and `term(0) ... term(count - 1)` by all lanes of a team; every lane gets it.
template <real T, team Team, class Term>
[[nodiscard]] BELAY_HD constexpr T maximum_in_lanes(const Team& team, Term term, std::size_t count, T floor) noexcept {
  if constexpr (Team::lanes == 1) {
    return maximum_in_lanes(term, count, floor);
  } else {
    T mine = floor;
    const auto see = [&mine](T value) { mine = value > mine ? value : mine; };
    std::size_t whole = 0;
    if constexpr (packed_term<Term>) {
      constexpr std::size_t pack = Term::indices_of_pack;
      if (count > 0 && by_packs(team, takes_packs(term, count))) {
        whole = count - count % pack;
        for (std::size_t i = team.lane * pack; i < whole; i += Team::lanes * pack) {
          const auto terms = term.pack(i);
          run_pack<pack>([&](std::size_t e) { see(terms.of[e]); });
        }
      }
    }
    for (std::size_t i = whole + team.lane; i < count; i += Team::lanes) see(term(i));
    for (unsigned width = Team::lanes / 2; width > 0; width /= 2) {
      const T other = team.from((team.lane + width) % Team::lanes, mine);
      mine = other > mine ? other : mine;
    }
    return team.from(0, mine);
  }
}

/// The largest element, as a number; minus infinity for an empty range. NaNs are ignored.
template <stored_real T>
[[nodiscard]] BELAY_HD constexpr compute_type_t<T> maximum_of(const T* x, std::size_t count) noexcept {
  using number = compute_type_t<T>;
  return maximum_in_lanes(values_of<number, T>{x}, count, -infinite<number>);
}

/// The largest of the values by all lanes of a team; every lane gets it.
template <team Team, stored_real T>
[[nodiscard]] BELAY_HD constexpr compute_type_t<T> maximum_of(const Team& team, const T* x,
                                                              std::size_t count) noexcept {
  using number = compute_type_t<T>;
  return maximum_in_lanes(team, values_of<number, T>{x}, count, -infinite<number>);
}

/// The largest magnitude; 0 for an empty range. NaNs are ignored.
template <real T>
[[nodiscard]] BELAY_HD constexpr T largest_magnitude(const T* x, std::size_t count) noexcept {
  return maximum_in_lanes(magnitudes_of<T>{x}, count, T(0));
}
template <team Team, real T>
[[nodiscard]] BELAY_HD constexpr T largest_magnitude(const Team& team, const T* x, std::size_t count) noexcept {
  return maximum_in_lanes(team, magnitudes_of<T>{x}, count, T(0));
}

/// Whether no element is infinite or NaN. By the bits, which fast math does not take for anything else.
[[nodiscard]] BELAY_HD constexpr bool are_finite(const float* x, std::size_t count) noexcept {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, x[i]) & 0x7fffffffu;
    found |= static_cast<std::uint32_t>(magnitude >= 0x7f800000u);
  }
  return found == 0;
}
[[nodiscard]] BELAY_HD constexpr bool are_finite(const double* x, std::size_t count) noexcept {
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t magnitude = __builtin_bit_cast(std::uint64_t, x[i]) & 0x7fffffffffffffffu;
    found |= static_cast<std::uint64_t>(magnitude >= 0x7ff0000000000000u);
  }
  return found == 0;
}

// Sums over rows, one for each column. Rows are added in groups of `rows_of_group`, each from its first row to its
// last, and the groups in ascending order. So a device adds groups at once and then their sums, and one thread, which
// adds a group after the other, gets the same bits.

/// Kernels that add up rows are divided into blocks of so many columns.
inline constexpr std::size_t columns_of_block = 64;
/// Rows whose sums are added to each other.
inline constexpr std::size_t rows_of_group = 64;

/// Blocks of so many columns.
[[nodiscard]] BELAY_HD constexpr std::size_t column_block_count(std::size_t width) noexcept {
  return (width + columns_of_block - 1) / columns_of_block;
}
/// Groups of so many rows.
[[nodiscard]] BELAY_HD constexpr std::size_t row_group_count(std::size_t rows) noexcept {
  return (rows + rows_of_group - 1) / rows_of_group;
}

/// The part of a row in a column's sum.
template <class Term>
concept column_term = requires(const Term& term, std::size_t row, std::size_t column) {
  { term(row, column) } -> real;
};
/// One that makes those of some consecutive columns of a row at once: `pack(row, column)` gives a `pack_of` those of
/// [column, column + `columns_of_pack`), where `packs()` says that its arrays are aligned for that in every row.
template <class Term>
concept packed_column_term = column_term<Term> && requires(const Term& term, std::size_t row, std::size_t column) {
  { Term::columns_of_pack } -> std::convertible_to<std::size_t>;
  { term.packs() } -> std::same_as<bool>;
  term.pack(row, column);
};

/// sums[j] += the sum over rows of term(row, j). An index is a block of columns.
template <column_term Term, real Sum>
struct column_sums {
  /// The terms, the sums, and how many rows and columns there are.
  Term term;
  Sum* sums;
  std::size_t rows;
  std::size_t width;

  /// Indices of all columns.
  [[nodiscard]] BELAY_HD constexpr std::size_t blocks() const noexcept { return column_block_count(width); }
  /// The columns of a block, in all rows.
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t block) const noexcept {
    const std::size_t column = block * columns_of_block;
    const std::size_t count = width - column < columns_of_block ? width - column : columns_of_block;
    for (std::size_t group = 0; group < row_group_count(rows); ++group)
      add_group(team, group, column, count, [&](std::size_t j, Sum sum) { sums[column + j] += sum; });
  }

  /// Calls `take(j, the sum over the rows of a group in column `first` + j)` for j below `count`, at most those of a
  /// block, divided among the lanes.
  template <team Team, class Take>
  BELAY_HD void add_group(const Team& team, std::size_t group, std::size_t first, std::size_t count,
                          const Take& take) const noexcept {
    const std::size_t begin = group * rows_of_group, end = begin + rows_of_group < rows ? begin + rows_of_group : rows;
    if constexpr (Team::lanes == 1) {
      Sum part[columns_of_block] = {};
      for (std::size_t row = begin; row < end; ++row)
        for (std::size_t j = 0; j < count; ++j) part[j] += static_cast<Sum>(term(row, first + j));
      for (std::size_t j = 0; j < count; ++j) take(j, part[j]);
    } else {
      std::size_t whole = 0;
      if constexpr (packed_column_term<Term>) {  // half a warp has those of a block: as many bytes are under way
        constexpr std::size_t pack = Term::columns_of_pack;
        if (by_packs(team, count >= pack && first % pack == 0 && term.packs())) {
          whole = count - count % pack;
          for (std::size_t j = team.lane * pack; j < whole; j += Team::lanes * pack) {
            pack_of<Sum, pack> part = {};
            for (std::size_t row = begin; row < end; ++row) {
              const auto terms = term.pack(row, first + j);
              run_pack<pack>([&](std::size_t e) { part.of[e] += static_cast<Sum>(terms.of[e]); });
            }
            run_pack<pack>([&](std::size_t e) { take(j + e, part.of[e]); });
          }
        }
      }
      for (std::size_t j = whole + team.lane; j < count; j += Team::lanes) {
        Sum part = 0;
        for (std::size_t row = begin; row < end; ++row) part += static_cast<Sum>(term(row, first + j));
        take(j, part);
      }
    }
  }
};

/// The sums of each group of rows, in `count` columns from `first` on: partials[group * count + j]. An index is a group
/// and a block of columns.
template <column_term Term, real Sum>
struct group_sums {
  /// The sums that groups are parts of, where those of groups are written, and the columns.
  column_sums<Term, Sum> of;
  Sum* partials;
  std::size_t first, count;

  /// Indices of all groups and blocks.
  [[nodiscard]] BELAY_HD std::size_t indices() const noexcept {
    return row_group_count(of.rows) * column_block_count(count);
  }
  /// A group in the columns of a block.
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t index) const noexcept {
    const std::size_t blocks = column_block_count(count), group = index / blocks;
    const std::size_t column = index % blocks * columns_of_block;
    const std::size_t some = count - column < columns_of_block ? count - column : columns_of_block;
    Sum* const to = partials + group * count + column;
    of.add_group(team, group, first + column, some, [&](std::size_t j, Sum sum) { to[j] = sum; });
  }
};

/// sums[j] += partials[j] + partials[count + j] + ..., group after group. An index is a column.
template <real Sum>
struct added_groups {
  /// Where it is added, the sums of groups, and how many columns and groups there are.
  Sum* sums;
  const Sum* partials;
  std::size_t count, groups;

  /// Column j.
  BELAY_HD void operator()(std::size_t j) const noexcept {
    Sum sum = sums[j];
    for (std::size_t group = 0; group < groups; ++group) sum += partials[group * count + j];
    sums[j] = sum;
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
