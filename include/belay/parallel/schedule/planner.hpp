// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Chooses a schedule: of all that there are, the one that ends first within the memory of each rank. Times and bytes
// are whole numbers, so that ranks that choose from the same ones choose the same.
//
//   const std::vector<std::uint64_t> budget(4, 30'000'000'000);  // of each rank
//   const auto chosen = belay::schedule::choose(16, budget, [&](const auto& placed) { return costs_of(placed); });
//   std::puts(chosen.name.c_str());
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/compute_lists.hpp"
#include "belay/parallel/schedule/table.hpp"
#include "belay/parallel/schedule/timeline.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// A network that is cut into stages: what each takes and keeps.
struct staged_costs {
  table_costs time;
  std::vector<stage_bytes> kept;           // one for each stage
  std::vector<std::uint64_t> always = {};  // of each rank, whatever the order: parameters, buffers; empty: nothing

  [[nodiscard]] std::uint64_t always_of(std::size_t rank) const noexcept { return always.empty() ? 0 : always[rank]; }
};

/// Which time a greedy schedule makes short: until the last rank ends, or of the rank that takes longest.
enum class greedy_goal : std::uint8_t { total, longest };

/// A schedule of one chunk a rank by list scheduling: whatever is there first runs, input gradients before forwards,
/// and weight gradients while nothing else is there, or where memory is full. Several orders of filling the pipeline
/// are tried, and the best is kept. `budget` are the bytes of each rank. Nothing where one micro-batch does not fit.
/// After the heuristics of "Zero Bubble Pipeline Parallelism" (Qi et al., 2024).
[[nodiscard]] BELAY_DECL std::optional<dynamic_table> greedy_table(std::size_t micro_batches, const staged_costs& costs,
                                                                   std::span<const std::uint64_t> budget,
                                                                   greedy_goal goal = greedy_goal::total);

/// A schedule that was chosen, and why not another.
struct schedule_choice {
  struct refused_schedule {
    std::string name;
    std::string reason;
    ticks total = 0;  // of one that fits and takes longer, or as long; 0: it was refused for what it is
  };

  std::string name;
  dynamic_table table;
  eager_cost cost;
  std::vector<std::uint64_t> bytes;       // most, of each rank
  std::vector<refused_schedule> refused;  // those that fit in the order in which they would be taken, then the others
  std::optional<dynamic_table> greedy;    // the greedy table, where it fits
};

/// Why a schedule of `total` was not taken, although it fits, and `taken` was: "takes 120, and zb-v 101".
[[nodiscard]] BELAY_DECL std::string why_not_taken(ticks total, std::string_view taken, ticks taken_total);

/// Gives the costs of a network that is cut into `ranks * placed.chunks` stages which lie so; nothing where it has too
/// few layers.
using costs_of_placement = function_ref<std::optional<staged_costs>(const placement& placed)>;

/// The schedule that ends first and keeps no more than `budget` on each rank; of equal ones the first in the order of
/// `named_schedule::names`, then the greedy one. V-Min is taken only where no other one of a name fits. DualPipeV of
/// pairs is refused where a pair saves no more than (p - 1) / (2 m - p - 2) of a forward. Deterministic. Throws
/// usage_error where none fits, with what the least needs.
[[nodiscard]] BELAY_DECL schedule_choice choose(std::size_t micro_batches, std::span<const std::uint64_t> budget,
                                                costs_of_placement costs, where at = where::current());

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/schedule/planner.ipp"  // IWYU pragma: export
#endif
