// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Finds pairs in a schedule: a forward of one micro-batch and a backward of another that a rank runs one after the
// other anyway. As one action both inputs are there when it begins and both outputs leave when it ends, which may let
// other ranks wait; pairs are formed only where the whole takes no longer.
//
//   const auto table = belay::schedule::with_pairs(belay::schedule::one_f_one_b(1, 8));
//   belay::schedule::pairs_of(table);  // 7: B0 beside F1, B1 beside F2, ...
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <cstddef>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/schedule/compute_lists.hpp"
#include "belay/parallel/schedule/table.hpp"
#include "belay/parallel/schedule/timeline.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// The number of pairs in all rows of a table.
template <any_table Table>
[[nodiscard]] constexpr std::size_t pairs_of(const Table& table) noexcept {
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < table.ranks(); ++rank)
    for (const action& each : table.actions(rank)) count += each.paired ? 1 : 0;
  return count;
}

/// A table with as many pairs as found: of computes that stand next to each other in a rank's row, but for weight
/// gradients in between, which run after the pair. It takes no longer than `of` does with these costs, no message
/// counted for more; the exchanges are found anew. A table that has pairs has no others, and one with actions beside
/// its computes none. A rank keeps up to one chunk more. Throws usage_error where `costs` has not one
/// entry for each stage.
[[nodiscard]] BELAY_DECL dynamic_table with_pairs(const dynamic_table& of, const table_costs& costs,
                                                  where at = where::current());
/// Of stages whose forward, input gradient and weight gradient take as long.
[[nodiscard]] BELAY_DECL dynamic_table with_pairs(const dynamic_table& of, where at = where::current());

/// Pairs that a table may have, and those it gets.
class pair_search {
 public:
  /// Both outlive it.
  pair_search(const dynamic_table& of, const table_costs& costs);

  /// Forms all pairs of which the time does not grow: first all together, then parts of them.
  void run();
  /// The computes with the pairs that were formed, and their number.
  [[nodiscard]] compute_lists lists() const;
  [[nodiscard]] std::size_t formed() const noexcept;

 private:
  // A forward and a backward, or its first half, by their places in the row.
  struct possible_pair {
    std::size_t rank, forward, backward;
    bool formed = false;
  };
  // The time of the schedule; `never` where it does not end.
  static constexpr ticks never = -1;
  [[nodiscard]] ticks time() const;
  void find(std::size_t rank);
  void form(std::size_t first, std::size_t end, std::size_t depth);

  const dynamic_table* of_;
  const table_costs* costs_;
  compute_lists rows_;
  std::vector<possible_pair> possible_;  // by rank, then by place
  ticks least_ = never;
};

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/schedule/pairs.ipp"  // IWYU pragma: export
#endif
