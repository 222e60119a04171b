// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Schedules by name, as command lines and files have them:
//
//   gpipe  1f1b  interleaved:V[:G]  bfs:V  interleaved-zb:V  zb-h1  zb-h2  zb-v  v-half  v-min  dualpipe-v[:atomic]
//
// V is the number of chunks of each rank, G the micro-batches that pass a chunk before the next one begins. Tables are
// made at start-up; while compiling, rules are values (`generate<schedule::zb_v_rule{}, 4, 16>()`).
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/schedule/compute_lists.hpp"
#include "belay/parallel/schedule/rules.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// A schedule that a name stands for: what is known of it before it has a table.
class named_schedule {
 public:
  /// Throws input_error where no schedule has this name, with the names that there are.
  [[nodiscard]] BELAY_DECL static named_schedule of(std::string_view name, where at = where::current());
  /// The names of all schedules, those with a number of chunks for each from 2 to `most_chunks`.
  [[nodiscard]] BELAY_DECL static std::vector<std::string> names(std::size_t most_chunks);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Where its stages lie on a number of ranks.
  [[nodiscard]] BELAY_DECL placement placed() const;
  /// The fewest micro-batches that it has on `ranks`.
  [[nodiscard]] BELAY_DECL std::size_t least_micro_batches(std::size_t ranks) const;
  /// Its table. Throws usage_error where sizes are 0 or too large, micro-batches too few, or groups smaller than the
  /// ranks.
  [[nodiscard]] BELAY_DECL dynamic_table table(std::size_t ranks, std::size_t micro_batches,
                                               where at = where::current()) const;
  /// The computes of each rank, without exchanges. Throws as `table` does.
  [[nodiscard]] BELAY_DECL compute_lists lists(std::size_t ranks, std::size_t micro_batches,
                                               where at = where::current()) const;

 private:
  enum class family : std::uint8_t {
    gpipe,
    one_f_one_b,
    interleaved,
    breadth_first,
    interleaved_zero_bubble,
    zb_h1,
    zb_h2,
    zb_v,
    v_half,
    v_min,
    dualpipe_v,
    dualpipe_v_atomic
  };
  struct named_family {
    std::string_view name;
    family of;
    bool counts_chunks;
  };
  [[nodiscard]] BELAY_DECL static std::span<const named_family> families() noexcept;
  void expect_group(std::size_t ranks, std::size_t micro_batches, where at) const;
  // Calls `use(rule)`.
  template <class Use>
  decltype(auto) with_rule(const Use& use) const;

  named_schedule(std::string name, family of, std::size_t chunks, std::size_t group)
      : name_(std::move(name)), family_(of), chunks_(chunks), group_(group) {}

  std::string name_;
  family family_;
  std::size_t chunks_;
  std::size_t group_;
};

/// The table of a name: `named_table("interleaved:2", 4, 16)`. Throws input_error for a name that is none, and as
/// `named_schedule::table`.
[[nodiscard]] BELAY_DECL dynamic_table named_table(std::string_view name, std::size_t ranks, std::size_t micro_batches,
                                                   where at = where::current());

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/schedule/catalogue.ipp"  // IWYU pragma: export
#endif
