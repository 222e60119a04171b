// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Teams, which do one index of a kernel together. A team does one row: `solo`, the host's thread, a warp, or for a long
// row the warps of a block. A kernel of rows is written against a team. It gets the same bits from any, because a sum
// always has the sixteen lanes of kernel/reduce.hpp, in the same order.
//
//   struct normed {                                               // row r of `out` = row r of `in` / its sum
//     const float* in;
//     float* out;
//     std::size_t width;
//     BELAY_HD void operator()(const auto& team, std::size_t row) const {
//       const float total = kernel::row_sum(team, in + row * width, width);
//       kernel::for_each_index(team, width, kernel::multiple<float>{1 / total, in + row * width, out + row * width});
//     }
//   };
//   belay::kernel::for_each_row(rows, normed{in, out, width});    // one thread
//
// A block does one tile: lanes with registers of their own and memory that they share. A kernel of blocks is written as
// phases: what a lane writes to shared memory is read by others in a later phase only. So a test can run the lanes of a
// phase one after the other, in any order, and a device all at once, with a barrier behind each.
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
#include "belay/kernel/for_each.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// The team of one thread.
struct solo {
  /// The only lane of a team of one.
  static constexpr unsigned lane = 0;
  static constexpr unsigned lanes = 1;
  /// After it, each lane sees what the others have written; nothing to do for one lane.
  BELAY_HD static constexpr void synchronize() noexcept {}
  /// The value that another lane gave.
  template <class T>
  [[nodiscard]] BELAY_HD static constexpr T from(unsigned, T value) noexcept {
    return value;
  }
};

/// Lanes that call together: one, or a multiple of 16. `from(l, x)` is the x that lane l gave.
template <class Team>
concept team = Team::lanes == 1 || Team::lanes % 16 == 0;

/// A team of smaller ones, such as a block of warps: `part()` is that of the calling lane, whose number is lane /
/// `part_type::lanes`.
template <class Team>
concept divided_team = team<Team> && team<typename Team::part_type> && requires(const Team& all) {
  { all.part() } -> std::same_as<typename Team::part_type>;
};

/// A kernel whose index is a row, done by a team.
template <class G, class Team = solo>
concept cooperative = requires(const G& g, const Team& team, std::size_t row) {
  g(team, row);
};

/// A kernel of rows that says how long they are: a device gives a long one a block instead of a warp.
template <class G>
concept sized_rows = requires(const G& g) {
  { g.columns() } -> std::same_as<std::size_t>;
};

/// Runs `f(0) ... f(count - 1)`, divided among the lanes. Afterwards all lanes see what was written.
template <team Team, indexed F>
BELAY_HD constexpr void for_each_index(const Team& team, std::size_t count, F f) noexcept(noexcept(f(count))) {
  if constexpr (Team::lanes == 1) {
    for_each_index(count, f);
  } else {
    for (std::size_t i = team.lane; i < count; i += Team::lanes) f(i);
    team.synchronize();
  }
}

/// Which of two forms a row takes, by packs or not. A team of a test that has `took_packs(bool)` is told.
template <team Team>
[[nodiscard]] BELAY_HD constexpr bool by_packs(const Team& team, bool takes) noexcept {
  if constexpr (requires { team.took_packs(takes); }) team.took_packs(takes);
  return takes;
}

/// Runs `f(0) ... f(count - 1)`, divided among the lanes; by packs where the arrays are aligned for them. Afterwards
/// all lanes see what was written.
template <team Team, packed F>
BELAY_HD constexpr void for_each_pack(const Team& team, std::size_t count, const F& f) noexcept {
  if constexpr (Team::lanes == 1) {
    for_each_index(count, f);
  } else {
    if (count == 0) return;
    const std::size_t whole = by_packs(team, takes_packs(f, count)) ? count / F::indices_of_pack : 0;
    for (std::size_t p = team.lane; p < whole; p += Team::lanes) f.pack(p * F::indices_of_pack);
    for (std::size_t i = whole * F::indices_of_pack + team.lane; i < count; i += Team::lanes) f(i);
    team.synchronize();
  }
}

/// Does every row on the calling thread: the loop that vectorises is inside the kernel.
// A function of its own for every kernel, with all of it inside: amid a large caller compilers leave parts of a kernel
// uninlined, and what they think is run only once they compile for size; neither is vectorised.
template <class G>
requires(indexed<G> || cooperative<G>)
    [[gnu::noinline, gnu::flatten, gnu::hot]] BELAY_HD constexpr void for_each_row(std::size_t count, G g) {
  for (std::size_t row = 0; row < count; ++row) {
    if constexpr (cooperative<G>)
      g(solo{}, row);
    else
      g(row);
  }
}

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
