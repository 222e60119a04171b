// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A plan says how many bytes are needed, before the first is allocated: per rank, tier and purpose. Its numbers come
// from the code that sizes the arenas (a rehearsal of the real step, the layout of the real buckets), so that plan and
// run cannot differ. A plan over its budget is refused with its table, and nothing was allocated.
//
//   belay::rank_plan rank;
//   rank.add(belay::tier::device, "activations", rehearsed.peak_bytes(), rehearsed.extent_bytes());
//   rank.add(belay::tier::device, "gradients", layout.gradient_elements() * sizeof(float));
//   const belay::plan plan({rank});
//   if (const auto missing = plan.shortage(limit)) throw belay::plan_refused(table, *missing, belay::where::current());
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

/// One purpose of memory in one tier. `bytes` are leased at the tier's peak, and are compared with the budget.
/// `capacity` is the address range of the arena, which is larger where leases of different lifetimes leave gaps.
struct plan_item {
  /// Where, what for, how many bytes, and how many the memory holds where that is more.
  tier where_it_is = tier::device;
  std::string purpose;
  std::size_t bytes = 0;
  std::size_t capacity = 0;
  file_bytes of_file = file_bytes::on_disk;  // in tier file
};

/// All memory that one rank will use.
class rank_plan {
 public:
  /// Adds a row.
  void add(plan_item item) { items_.push_back(std::move(item)); }
  void add(tier where_it_is, std::string purpose, std::size_t bytes, std::size_t capacity) {
    add({.where_it_is = where_it_is, .purpose = std::move(purpose), .bytes = bytes, .capacity = capacity});
  }
  void add(tier where_it_is, std::string purpose, std::size_t bytes) {
    add(where_it_is, std::move(purpose), bytes, bytes);
  }

  /// The rows in the order in which they were added.
  [[nodiscard]] const std::vector<plan_item>& items() const noexcept { return items_; }

  /// Peak of leased bytes in a tier, as the run's meter will show it. The sum does not wrap around.
  [[nodiscard]] std::size_t peak_bytes(tier of) const noexcept { return folded(of, &plan_item::bytes); }
  /// Bytes of address range in a tier, gaps included.
  [[nodiscard]] std::size_t capacity_bytes(tier of) const noexcept { return folded(of, &plan_item::capacity); }

 private:
  [[nodiscard]] std::size_t folded(tier of, std::size_t plan_item::* what) const noexcept;
  std::vector<plan_item> items_;
};

/// Where a plan exceeds its budget.
struct plan_shortage {
  /// The tier, the rank, what it needs, and what it may have.
  tier where_it_is = tier::device;
  int rank = 0;
  std::size_t needed_bytes = 0;
  std::size_t budget_bytes = 0;
};

class plan {
 public:
  plan() = default;
  /// One plan a rank.
  explicit plan(std::vector<rank_plan> ranks) : ranks_(std::move(ranks)) {}

  /// One plan a rank.
  [[nodiscard]] const std::vector<rank_plan>& ranks() const noexcept { return ranks_; }

  /// The worst shortage against a budget per rank, or nothing.
  [[nodiscard]] std::optional<plan_shortage> shortage(const budget& limit) const;

  /// Purposes of a tier in the order in which the first rank that has them lists them.
  [[nodiscard]] std::vector<std::string> purposes(tier of) const;

 private:
  [[nodiscard]] static bool holds(const std::vector<std::string>& list, const std::string& wanted) noexcept;

  std::vector<rank_plan> ranks_;
};

/// The plan does not fit: `what()` is its table and what to change. Nothing was allocated.
class plan_refused : public error {
 public:
  /// `table` is the plan as text; `shortage` what it has too little of.
  plan_refused(const std::string& table, plan_shortage shortage, where at)
      : error("the plan is over its budget; nothing was allocated for it\n" + table, at), shortage_(shortage) {}
  [[nodiscard]] error_kind kind() const noexcept override { return error_kind::plan; }
  [[nodiscard]] const plan_shortage& shortage() const noexcept { return shortage_; }

 private:
  plan_shortage shortage_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/plan.ipp"  // IWYU pragma: export
#endif
