// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Schedules that keep half, or a third, of what 1F1B keeps: two chunks of each rank in a V, and a pattern that repeats
// every six units of time, of which two are left for weight gradients ("Pipeline Parallelism with Controllable Memory",
// Qi et al., 2024). The pattern alone leaves holes where the pipeline fills and drains. What lies there moves to
// earlier times as long as no rank keeps more for it; the middle stays.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/parallel/schedule/compute_lists.hpp"
#include "belay/parallel/schedule/rules.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// Units of time from a micro-batch's first forward on a rank: forwards of its two chunks, and input gradients.
struct v_pattern {
  std::size_t forward[2];
  std::size_t input[2];

  static constexpr std::size_t period = 6;
};

/// A timetable: of each rank and unit of time, what runs there.
class timetable {
 public:
  constexpr timetable(std::size_t ranks, std::size_t micro_batches, std::size_t units)
      : ranks_(ranks),
        micro_batches_(micro_batches),
        units_(units),
        runs_(ranks * units),
        over_(ranks * kinds * micro_batches) {}

  static constexpr std::size_t kinds = 6;  // forwards, input and weight gradients, of two chunks each
  static constexpr std::size_t forward = 0, input = 2, weight = 4;  // and the chunk

  [[nodiscard]] constexpr std::size_t units() const noexcept { return units_; }

  constexpr void place(std::size_t rank, std::size_t kind, std::size_t micro_batch, std::size_t unit) {
    runs_[rank * units_ + unit] = static_cast<std::uint32_t>(1 + micro_batch * kinds + kind);
    over_[(rank * kinds + kind) * micro_batches_ + micro_batch] = static_cast<std::uint32_t>(unit + 1);
  }
  /// 1 + what runs there; 0: nothing.
  [[nodiscard]] constexpr std::uint32_t operator()(std::size_t rank, std::size_t unit) const {
    return runs_[rank * units_ + unit];
  }

  /// The first unit after all that a compute waits for: its input, and its own of the micro-batch before.
  [[nodiscard]] constexpr std::size_t earliest(std::size_t rank, std::size_t kind, std::size_t micro_batch) const {
    const std::size_t chunk = kind % 2;
    std::size_t after = micro_batch > 0 ? over(rank, kind, micro_batch - 1) : 0;
    const auto not_before = [&](std::size_t end) { after = end > after ? end : after; };
    if (kind >= weight) {
      not_before(over(rank, input + chunk, micro_batch));
    } else if (kind >= input) {
      not_before(over(rank, forward + chunk, micro_batch));
      if (chunk == 1 && rank > 0) not_before(over(rank - 1, kind, micro_batch));
      if (chunk == 0)
        not_before(rank + 1 < ranks_ ? over(rank + 1, kind, micro_batch) : over(rank, input + 1, micro_batch));
    } else {
      if (chunk == 0 && rank > 0) not_before(over(rank - 1, kind, micro_batch));
      if (chunk == 1)
        not_before(rank + 1 < ranks_ ? over(rank + 1, kind, micro_batch) : over(rank, forward, micro_batch));
    }
    return after;
  }

  /// Weight gradients take a rank's free units, in the order of the input gradients.
  constexpr void place_weights(std::size_t rank) {
    std::size_t oldest = 0;  // the unit of the input gradient whose weight gradient is next
    for (std::size_t unit = 0; unit < units_; ++unit) {
      if ((*this)(rank, unit) != 0) continue;
      while (oldest < unit && !is_input((*this)(rank, oldest))) ++oldest;
      if (oldest == unit) continue;
      const std::uint32_t found = (*this)(rank, oldest++) - 1;
      place(rank, found % kinds + weight - input, found / kinds, unit);
    }
  }
  /// Takes them out again.
  constexpr void remove_weights(std::size_t rank) {
    for (std::size_t unit = 0; unit < units_; ++unit) {
      std::uint32_t& runs = runs_[rank * units_ + unit];
      if (runs != 0 && (runs - 1) % kinds >= weight) runs = 0;
    }
  }

  /// Moves what runs at a unit to the first free one from `from` on where its input is there, and `fits()` holds.
  template <class Fits>
  constexpr void advance(std::size_t rank, std::size_t unit, std::size_t from, const Fits& fits) {
    const std::uint32_t runs = (*this)(rank, unit);
    if (runs == 0) return;
    const std::size_t kind = (runs - 1) % kinds, micro_batch = (runs - 1) / kinds;
    std::uint32_t* const row = runs_.data() + rank * units_;
    const std::size_t there = earliest(rank, kind, micro_batch);
    for (std::size_t free = there > from ? there : from; free < unit; ++free) {
      if (row[free] != 0) continue;
      row[unit] = 0;
      place(rank, kind, micro_batch, free);
      if (fits()) return;
      row[free] = 0;
      place(rank, kind, micro_batch, unit);
    }
  }

  /// Runs every compute as soon as its rank and its input are there, in the order of each rank.
  constexpr void squeeze() {
    // In the order of time an input has its new unit before it is asked for.
    const scratch_array<std::uint32_t> next(ranks_);
    for (std::size_t unit = 0; unit < units_; ++unit) {
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        const std::uint32_t runs = (*this)(rank, unit);
        if (runs == 0) continue;
        const std::size_t kind = (runs - 1) % kinds, micro_batch = (runs - 1) / kinds;
        const std::size_t there = earliest(rank, kind, micro_batch);
        const std::size_t to = there > next[rank] ? there : next[rank];
        next[rank] = static_cast<std::uint32_t>(to + 1);
        if (to == unit) continue;
        runs_[rank * units_ + unit] = 0;
        place(rank, kind, micro_batch, to);
      }
    }
  }

  constexpr void write(compute_lists& lists) const {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      for (std::size_t unit = 0; unit < units_; ++unit) {
        const std::uint32_t runs = (*this)(rank, unit);
        if (runs == 0) continue;
        const std::size_t kind = (runs - 1) % kinds;
        lists.add(rank,
                  kind < input    ? action_kind::forward
                  : kind < weight ? action_kind::input_gradient
                                  : action_kind::weight_gradient,
                  (runs - 1) / kinds, kind % 2);
      }
    }
  }

 private:
  [[nodiscard]] constexpr std::size_t over(std::size_t rank, std::size_t kind, std::size_t micro_batch) const {
    return over_[(rank * kinds + kind) * micro_batches_ + micro_batch];
  }
  [[nodiscard]] static constexpr bool is_input(std::uint32_t runs) {
    return runs != 0 && (runs - 1) % kinds >= input && (runs - 1) % kinds < weight;
  }

  std::size_t ranks_;
  std::size_t micro_batches_;
  std::size_t units_;
  scratch_array<std::uint32_t> runs_;  // by rank and unit
  scratch_array<std::uint32_t> over_;  // by rank, kind and micro-batch: the unit after it
};

/// Counts the chunks that a rank keeps.
struct kept_chunks {
  std::size_t kept = 0;
  std::size_t owed = 0;  // weight gradients that take the next free units

  /// Whether at most `most` are kept from unit `begin` to unit `end`, whose weight gradients have places.
  [[nodiscard]] constexpr bool stays_within(const timetable& table, std::size_t rank, std::size_t begin,
                                            std::size_t end, std::size_t most) {
    for (std::size_t unit = begin; unit < end; ++unit) {
      const std::uint32_t runs = table(rank, unit);
      if (runs == 0) continue;
      const std::size_t kind = (runs - 1) % timetable::kinds;
      if (kind >= timetable::weight) --kept;
      if (kind < timetable::input && ++kept > most) return false;
    }
    return true;
  }
  /// Whether that holds where weight gradients take free units.
  [[nodiscard]] constexpr bool stays_within_filled(const timetable& table, std::size_t rank, std::size_t begin,
                                                   std::size_t end, std::size_t most) {
    for (std::size_t unit = begin; unit < end; ++unit) {
      const std::uint32_t runs = table(rank, unit);
      if (runs == 0) {
        if (owed > 0) --owed, --kept;
      } else if ((runs - 1) % timetable::kinds >= timetable::input) {
        ++owed;
      } else if (++kept > most) {
        return false;
      }
    }
    return true;
  }
};

/// A pattern, and its ends moved together.
template <class Pattern>
struct v_pattern_rule {
  static constexpr std::string_view name = Pattern::name;

  [[nodiscard]] static constexpr placement placed() { return {2, stage_in_v}; }

  constexpr void write(compute_lists& lists) const {
    const std::size_t ranks = lists.ranks(), micro_batches = lists.micro_batches();
    const std::size_t most = Pattern::peak(ranks);
    timetable table(ranks, micro_batches, v_pattern::period * (micro_batches + ranks + 2));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const v_pattern of = Pattern::of(rank, ranks);
      for (std::size_t i = 0; i < micro_batches; ++i) {
        for (std::size_t chunk = 0; chunk < 2; ++chunk) {
          table.place(rank, timetable::forward + chunk, i, of.forward[chunk] + v_pattern::period * i);
          table.place(rank, timetable::input + chunk, i, of.input[chunk] + v_pattern::period * i);
        }
      }
      table.place_weights(rank);
    }
    // Until rank 0 runs its first input gradient of chunk 0 the pipeline fills.
    for (std::size_t unit = 1; unit < Pattern::of(0, ranks).input[0]; ++unit) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        table.advance(rank, unit, 0, [&] { return kept_chunks{}.stays_within(table, rank, 0, unit + 1, most); });
      }
    }
    table.squeeze();
    drain(table, ranks, most, table.earliest(0, timetable::forward, micro_batches));
    table.write(lists);
  }

 private:
  // From `begin` on, after the last forward of rank 0's chunk 0.
  static constexpr void drain(timetable& table, std::size_t ranks, std::size_t most, std::size_t begin) {
    const scratch_array<kept_chunks> until(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      table.remove_weights(rank);
      static_cast<void>(until[rank].stays_within_filled(table, rank, 0, begin, most));
    }
    for (std::size_t unit = begin; unit < table.units(); ++unit) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        table.advance(rank, unit, begin, [&] {
          kept_chunks from_here = until[rank];
          return from_here.stays_within_filled(table, rank, begin, table.units(), most);
        });
      }
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) table.place_weights(rank);
  }
};

/// Keeps half of what 1F1B keeps, and one chunk.
struct v_half_pattern {
  static constexpr std::string_view name = "v-half";

  [[nodiscard]] static constexpr v_pattern of(std::size_t rank, std::size_t ranks) {
    const std::size_t apart = ranks % 2 == 0 ? 3 : 0;  // so that the four never fall together
    return {{2 * rank, 3 * ranks - 2 - rank}, {6 * ranks + apart - 2 - rank, 3 * ranks + apart + 2 * rank - 1}};
  }
  [[nodiscard]] static constexpr std::size_t peak(std::size_t ranks) { return 2 * ((ranks + 2) / 2); }
};
using v_half_rule = v_pattern_rule<v_half_pattern>;

/// Keeps a third of what 1F1B keeps, and two chunks at most. A rank has no time to spare: one that is late delays all.
struct v_min_pattern {
  static constexpr std::string_view name = "v-min";

  [[nodiscard]] static constexpr v_pattern of(std::size_t rank, std::size_t ranks) {
    const std::size_t apart = ranks % 3 == 0 ? 2 : 0;
    return {{rank, 2 * ranks - 1 - rank}, {4 * ranks + apart - 1 - rank, 2 * ranks + apart + rank}};
  }
  [[nodiscard]] static constexpr std::size_t peak(std::size_t ranks) { return 2 * ((ranks + 4) / 3); }
};
using v_min_rule = v_pattern_rule<v_min_pattern>;

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
