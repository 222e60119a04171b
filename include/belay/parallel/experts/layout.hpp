// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where every row goes, computed by each rank alone from the selections of all ranks. Rows of an owner are grouped by
// local expert, within an expert by source rank, within a source by token. This is the order of all tokens of the
// micro-batch, so an expert sees the same rows in the same order on any mesh. Rows beyond the capacity get no place,
// and nothing outside of a slot is ever addressed.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Settings that every rank of an expert group agrees on.
struct expert_settings {
  std::size_t experts = 0;   // of all ranks; a multiple of the group's size
  std::size_t k = 0;         // experts a token visits
  std::size_t hidden = 0;    // elements of a row
  std::size_t capacity = 0;  // rows that a rank can receive in one dispatch
};

/// The capacity that dispatches have needed since it was last taken: the same on all ranks of a group.
struct expert_overflow {
  std::size_t needed = 0;    // the most rows that a rank was sent in one dispatch
  std::size_t capacity = 0;  // the rows that a rank had room for

  [[nodiscard]] bool happened() const noexcept { return needed > capacity; }
  /// For the vote of a step: the rows to make room for, 0 without an overflow.
  [[nodiscard]] std::size_t rows_wanted() const noexcept { return happened() ? needed : 0; }
};

/// The place of a row for which there is no room.
inline constexpr std::int32_t no_place = -1;

/// The sizes of an exchange. Experts are divided evenly: rank r owns experts [r * local, (r + 1) * local).
struct expert_shape {
  std::size_t ranks = 1;
  std::size_t rank = 0;
  std::size_t experts = 0;
  std::size_t k = 0;
  std::size_t hidden = 0;
  std::size_t capacity = 0;  // rows that a rank can receive

  [[nodiscard]] constexpr std::size_t local() const noexcept { return experts / ranks; }
};

/// The shape of an exchange on rank `rank` of `ranks`. Throws usage_error where experts cannot be divided among the
/// ranks, or k of them not be chosen.
[[nodiscard]] BELAY_DECL expert_shape shape_of(const expert_settings& settings, std::size_t ranks, std::size_t rank,
                                               where at);

/// Throws usage_error where rows are not counted in 31 bits, size_error where their slots are more than any memory
/// holds.
BELAY_DECL void expect_capacity(const expert_shape& shape, std::size_t rows, std::size_t element_bytes, where at);

/// The rows that `owner` is sent, from `selections` [ranks, experts].
[[nodiscard]] BELAY_DECL std::size_t rows_received(const expert_shape& shape, view<const std::int64_t, 2> selections,
                                                   std::size_t owner) noexcept;

/// The most rows that a rank is sent: the least capacity without an overflow.
[[nodiscard]] BELAY_DECL std::size_t rows_needed(const expert_shape& shape,
                                                 view<const std::int64_t, 2> selections) noexcept;

/// Rows [first, end) of a slot.
struct row_range {
  std::size_t first, end;
};
/// Calls `take(source, i, rows)` for each local expert i and each rank whose rows for it lie in this rank's slot, in
/// the order of memory. Never beyond the capacity.
template <class Take>
void for_each_received(const expert_shape& shape, view<const std::int64_t, 2> selections, const Take& take) noexcept {
  const auto within = [&](std::size_t row) { return row < shape.capacity ? row : shape.capacity; };
  std::size_t row = 0;
  for (std::size_t i = 0; i < shape.local(); ++i) {
    for (std::size_t source = 0; source < shape.ranks; ++source) {
      const std::size_t first = row;
      row += static_cast<std::size_t>(selections(source, shape.rank * shape.local() + i));
      take(source, i, row_range{within(first), within(row)});
    }
  }
}

/// Writes `offsets` [local + 1]: this rank's received rows of local expert i are [offsets[i], offsets[i + 1]).
/// Never beyond the capacity.
BELAY_DECL void expert_offsets(const expert_shape& shape, view<const std::int64_t, 2> selections,
                               view<std::size_t, 1> offsets) noexcept;

/// Writes `cuts` [local, ranks - 1]: where the rows of the next source begin among those of this rank's local expert i.
/// Never beyond the capacity.
BELAY_DECL void expert_cuts(const expert_shape& shape, view<const std::int64_t, 2> selections,
                            view<std::size_t, 2> cuts) noexcept;

/// The rows of this rank's slot that came from `source` for its local expert i, from what `expert_offsets` and
/// `expert_cuts` have written.
[[nodiscard]] BELAY_DECL row_range rows_from(std::size_t source, std::size_t i, view<const std::size_t, 1> offsets,
                                             view<const std::size_t, 2> cuts) noexcept;

/// Writes `starts` [experts]: the row of the owner's slot from which on this rank's rows for an expert lie, as if there
/// were room for all.
BELAY_DECL void expert_starts(const expert_shape& shape, view<const std::int64_t, 2> selections,
                              view<std::int64_t, 1> starts) noexcept;
/// Writes `shifts` [experts]: from a row's place among this rank's, in the order of experts, to that in the owner's
/// slot. One beyond the capacity stays beyond it.
BELAY_DECL void expert_shifts(const expert_shape& shape, view<const std::int64_t, 2> selections,
                              view<const std::int64_t, 1> starts, view<std::int32_t, 1> shifts) noexcept;

/// Writes `sent` [experts]: of this rank's rows, in the order of experts, those of each expert for which its owner has
/// room. `starts` is what `expert_starts` has written.
BELAY_DECL void rows_sent(const expert_shape& shape, view<const std::int64_t, 2> selections,
                          view<const std::int64_t, 1> starts, view<row_range, 1> sent) noexcept;
/// Writes `received` [ranks, local]: the rows of this rank's slot that each rank sends for each of its experts.
BELAY_DECL void rows_received_of(const expert_shape& shape, view<const std::int64_t, 2> selections,
                                 view<row_range, 2> received) noexcept;

/// Writes `places` [rows, k]: the row of the owner's slot for (token, j) of this rank, or `no_place`. `cursor`
/// [experts] is scratch.
BELAY_DECL void expert_places(const expert_shape& shape, view<const std::int64_t, 2> selections,
                              view<const std::int32_t, 2> choices, view<std::int64_t, 1> cursor,
                              view<std::int32_t, 2> places) noexcept;

/// Throws usage_error where the counts of a routing, plain data of the caller from which positions in slots are
/// computed, do not add up to its choices.
BELAY_DECL void expect_counts(view<const std::int64_t, 1> counts, std::size_t choices, where at);

/// Throws usage_error where `what`, [count, hidden], has another shape.
template <class U>
void expect_rows(view<U, 2> rows, std::size_t count, std::size_t hidden, const char* what, where at) {
  if (rows.extent(0) == count && rows.extent(1) == hidden) return;
  throw usage_error(std::string(what) + " is [" + std::to_string(count) + ", " + std::to_string(hidden) + "], not [" +
                        std::to_string(rows.extent(0)) + ", " + std::to_string(rows.extent(1)) + "]",
                    at);
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/experts/layout.ipp"  // IWYU pragma: export
#endif
