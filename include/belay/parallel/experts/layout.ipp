// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The places of rows, counted from the selections of all ranks.
#pragma once

#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/parallel/experts/layout.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL expert_shape shape_of(const expert_settings& settings, std::size_t ranks, std::size_t rank, where at) {
  if (settings.experts == 0 || settings.experts % ranks != 0) {
    throw usage_error(std::to_string(settings.experts) + " experts cannot be divided among " + std::to_string(ranks) +
                          " ranks: the number of ranks must divide them",
                      at);
  }
  if (settings.k < 1 || settings.k > settings.experts) {
    throw usage_error(
        "a token cannot visit " + std::to_string(settings.k) + " of " + std::to_string(settings.experts) + " experts",
        at);
  }
  const checked_size selections = checked_size(ranks) * settings.experts * sizeof(std::int64_t);
  static_cast<void>(
      selections.value([&] { return std::to_string(settings.experts) + " experts, counted by every rank, are"; }, at));
  expert_shape shape;
  shape.ranks = ranks;
  shape.rank = rank;
  shape.experts = settings.experts;
  shape.k = settings.k;
  shape.hidden = settings.hidden;
  return shape;
}

BELAY_DECL void expect_capacity(const expert_shape& shape, std::size_t rows, std::size_t element_bytes, where at) {
  if (rows > static_cast<std::size_t>(largest_value<std::int32_t>))
    throw usage_error("an expert capacity of " + std::to_string(rows) + " rows is beyond 2^31 - 1", at);
  const checked_size slot_bytes = checked_size(rows) * shape.hidden * element_bytes * 3;  // a dispatch and its backward
  const auto words = [&] {
    return "an expert capacity of " + std::to_string(rows) + " rows of " + std::to_string(shape.hidden) +
           " elements is";
  };
  static_cast<void>(slot_bytes.value(words, at));
}

BELAY_DECL std::size_t rows_received(const expert_shape& shape, view<const std::int64_t, 2> selections,
                                     std::size_t owner) noexcept {
  std::int64_t rows = 0;
  for (std::size_t source = 0; source < shape.ranks; ++source) {
    for (std::size_t e = owner * shape.local(); e < (owner + 1) * shape.local(); ++e) rows += selections(source, e);
  }
  return static_cast<std::size_t>(rows);
}

BELAY_DECL std::size_t rows_needed(const expert_shape& shape, view<const std::int64_t, 2> selections) noexcept {
  std::size_t most = 0;
  for (std::size_t owner = 0; owner < shape.ranks; ++owner) {
    const std::size_t rows = rows_received(shape, selections, owner);
    most = rows > most ? rows : most;
  }
  return most;
}

BELAY_DECL void expert_offsets(const expert_shape& shape, view<const std::int64_t, 2> selections,
                               view<std::size_t, 1> offsets) noexcept {
  offsets[0] = 0;
  for_each_received(shape, selections,
                    [&](std::size_t, std::size_t i, const row_range& rows) { offsets[i + 1] = rows.end; });
}

BELAY_DECL void expert_cuts(const expert_shape& shape, view<const std::int64_t, 2> selections,
                            view<std::size_t, 2> cuts) noexcept {
  for_each_received(shape, selections, [&](std::size_t source, std::size_t i, const row_range& rows) {
    if (source + 1 < shape.ranks) cuts(i, source) = rows.end;
  });
}

BELAY_DECL row_range rows_from(std::size_t source, std::size_t i, view<const std::size_t, 1> offsets,
                               view<const std::size_t, 2> cuts) noexcept {
  const std::size_t last = cuts.extent(1);
  return {source == 0 ? offsets[i] : cuts(i, source - 1), source == last ? offsets[i + 1] : cuts(i, source)};
}

BELAY_DECL void expert_starts(const expert_shape& shape, view<const std::int64_t, 2> selections,
                              view<std::int64_t, 1> starts) noexcept {
  for (std::size_t owner = 0; owner < shape.ranks; ++owner) {
    std::int64_t row = 0;
    for (std::size_t e = owner * shape.local(); e < (owner + 1) * shape.local(); ++e) {
      for (std::size_t source = 0; source < shape.ranks; ++source) {
        if (source == shape.rank) starts[e] = row;
        row += selections(source, e);
      }
    }
  }
}

BELAY_DECL void expert_shifts(const expert_shape& shape, view<const std::int64_t, 2> selections,
                              view<const std::int64_t, 1> starts, view<std::int32_t, 1> shifts) noexcept {
  const auto capacity = static_cast<std::int64_t>(shape.capacity);
  std::int64_t before = 0;
  for (std::size_t e = 0; e < shape.experts; ++e) {
    const std::int64_t start = starts[e] < capacity ? starts[e] : capacity;
    shifts[e] = static_cast<std::int32_t>(start - before);
    before += selections(shape.rank, e);
  }
}

BELAY_DECL void rows_sent(const expert_shape& shape, view<const std::int64_t, 2> selections,
                          view<const std::int64_t, 1> starts, view<row_range, 1> sent) noexcept {
  std::size_t before = 0;
  for (std::size_t e = 0; e < shape.experts; ++e) {
    const auto start = static_cast<std::size_t>(starts[e]), rows = static_cast<std::size_t>(selections(shape.rank, e));
    const std::size_t room = start < shape.capacity ? shape.capacity - start : 0;
    sent[e] = {before, before + (rows < room ? rows : room)};
    before += rows;
  }
}

BELAY_DECL void rows_received_of(const expert_shape& shape, view<const std::int64_t, 2> selections,
                                 view<row_range, 2> received) noexcept {
  for_each_received(shape, selections,
                    [&](std::size_t source, std::size_t i, const row_range& rows) { received(source, i) = rows; });
}

BELAY_DECL void expert_places(const expert_shape& shape, view<const std::int64_t, 2> selections,
                              view<const std::int32_t, 2> choices, view<std::int64_t, 1> cursor,
                              view<std::int32_t, 2> places) noexcept {
  expert_starts(shape, selections, cursor);
  const auto capacity = static_cast<std::int64_t>(shape.capacity);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::int64_t place = cursor[static_cast<std::size_t>(choices.data()[i])]++;
    places.data()[i] = place < capacity ? static_cast<std::int32_t>(place) : no_place;
  }
}

BELAY_DECL void expect_counts(view<const std::int64_t, 1> counts, std::size_t choices, where at) {
  checked_size selections;
  for (std::int64_t count : counts.flat()) selections += count < 0 ? largest_size : static_cast<std::size_t>(count);
  if (selections.saturated() == choices) return;
  throw usage_error("dispatch: the counts of the routing do not add up to its " + std::to_string(choices) + " choices",
                    at);
}

}  // namespace belay::inline BELAY_ABI
