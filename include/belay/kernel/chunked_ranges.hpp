// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Kernels over many ranges of elements at once: a table says where each range lies, and a team does a chunk of
// `sum_chunk` elements of one of them. So what a device does with hundreds of parameters is one launch. The bits are
// those of the same work range by range.
//
//   const belay::kernel::chunked_ranges all{rows, count};  // rows in the memory of the device
//   kit.teams(chunks, belay::kernel::adamw_of_ranges<float, float>{all, state, part, decayed, undecayed});
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// A range of a parameter and its gradient, whatever their types.
struct chunked_range {
  /// The first value and its gradient, and how many elements there are.
  void* value;
  void* gradient;
  std::size_t count;
  std::size_t first_chunk;  // chunks of all ranges before it in the table
  std::size_t before;       // elements before it in each part of an optimizer's state
  std::uint64_t decays;     // whether an optimizer decays its values
};

/// An address that was read from a table: on a device the compiler then knows that it is no shared or local memory.
template <class T>
[[nodiscard]] BELAY_HD T* global_address(void* address) noexcept {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(address));
#endif
  return static_cast<T*>(address);
}

/// Successive ranges of a table.
struct chunked_ranges {
  /// The first of them, in memory that the kernel addresses; there is at least one where a chunk is asked for.
  const chunked_range* rows;
  std::size_t count;

  /// A chunk of a range.
  struct range_part {
    /// The range, the chunk's first element of it, and how many there are.
    const chunked_range* of;
    std::size_t first, count;
  };
  /// Chunk `number` of these ranges, counted from 0.
  [[nodiscard]] BELAY_HD constexpr range_part operator[](std::size_t number) const noexcept {
    const std::size_t chunk = rows->first_chunk + number;
    std::size_t low = 0, high = count;  // the range is one of [low, high)
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      (rows[middle].first_chunk <= chunk ? low : high) = middle;
    }
    const std::size_t first = (chunk - rows[low].first_chunk) * sum_chunk, left = rows[low].count - first;
    return {rows + low, first, left < sum_chunk ? left : sum_chunk};
  }
};

/// AdamW of ranges of `Value`, which `T` computes: a row for each chunk. The state is one part after the other, `part`
/// elements apart: two moments, and master copies where `Value` is narrower.
template <real T, stored_real Value>
struct adamw_of_ranges {
  /// The ranges, their state, and the scalars of parameters with weight decay and without.
  chunked_ranges ranges;
  T* state;
  std::size_t part;
  adamw_scalars_in<T> decayed, undecayed;

  /// Updates a chunk.
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t row) const noexcept {
    const chunked_ranges::range_part chunk = ranges[row];
    const chunked_range& range = *chunk.of;
    auto* const value = global_address<Value>(range.value) + chunk.first;
    const T* const gradient = global_address<const T>(range.gradient) + chunk.first;
    T* const moments = state + range.before + chunk.first;
    const adamw_scalars<T> by = scalars_of(range.decays != 0 ? decayed : undecayed);
    if constexpr (std::is_same_v<T, Value>)
      for_each_pack(team, chunk.count, adamw<T>{value, gradient, moments, moments + part, by});
    else
      for_each_pack(team, chunk.count,
                    adamw_of_master<T, Value>{value, {moments + 2 * part, gradient, moments, moments + part, by}});
  }
};

/// Multiplies gradients by a number and adds the squares of the products, chunk by chunk: to the bits of `scale_from`
/// and `chunk_sums_of_squares`. A row is `chunks_of_row` chunks: in a team of 32 lanes, four lanes do one of them. Each
/// adds four of the sixteen lanes of a sum, so that an access has four elements and no order changes.
template <real T>
struct scaled_squares_of_ranges {
  static constexpr std::size_t chunks_of_row = 8;
  /// The ranges and the number of their chunks, the factor, and a sum for each chunk.
  chunked_ranges ranges;
  std::size_t chunks;
  const T* by;
  double* out;

  /// Rows of all chunks.
  [[nodiscard]] static constexpr std::size_t rows_of(std::size_t chunks) noexcept {
    return (chunks + chunks_of_row - 1) / chunks_of_row;
  }

  /// Scales the chunks of a row, and adds their squares.
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t row) const noexcept {
    const std::size_t first = row * chunks_of_row,
                      end = first + chunks_of_row < chunks ? first + chunks_of_row : chunks;
    if constexpr (Team::lanes == 1) {
      for (std::size_t c = first; c < end; ++c) {
        const chunked_ranges::range_part chunk = ranges[c];
        T* const x = static_cast<T*>(chunk.of->gradient) + chunk.first;
        for_each_index(chunk.count, scale_from<T>{by, x});
        out[c] = sum_in_lanes<double>(products_of<double, T>{x, x}, chunk.count);
      }
    } else {
      static_assert(Team::lanes == quad * chunks_of_row);
      const std::size_t c = first + team.lane / quad;
      double of[quad] = {};
      if (c < end) {
        const chunked_ranges::range_part chunk = ranges[c];
        scale(team, global_address<T>(chunk.of->gradient) + chunk.first, chunk.count, of);
      }
      const double sum = folded(team, of);
      if (c < end && team.lane % quad == 0) out[c] = sum;
    }
  }

 private:
  static constexpr unsigned quad = 4;  // lanes of a chunk, and sums of each: sixteen in all
  static_assert(quad * quad == sum_lanes);

  // Of every sixteen elements four, which are those of the lane.
  template <team Team>
  BELAY_HD void scale(const Team& team, T* x, std::size_t count, double* of) const noexcept {
    const T factor = *by;
    const std::size_t whole = count / sum_lanes * sum_lanes;
    std::size_t i = team.lane % quad * quad;
    if (by_packs(team, are_packs<quad>(x))) {
      for (; i < whole; i += sum_lanes) {
        pack_of<T, quad> some = load_pack<quad>(x, i);
        for (unsigned s = 0; s < quad; ++s) add(some.of[s] *= factor, of[s]);
        store_pack(some, x, i);
      }
    } else {
      for (; i < whole; i += sum_lanes)
        for (unsigned s = 0; s < quad; ++s) add(x[i + s] *= factor, of[s]);
    }
    for (unsigned s = 0; s < quad && i + s < count; ++s) add(x[i + s] *= factor, of[s]);
  }
  BELAY_HD static constexpr void add(T value, double& sum) noexcept {
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  // In halves, as `sum_in_lanes`: lanes 8 to 15 are those of the third and the fourth of four.
  template <team Team>
  [[nodiscard]] BELAY_HD static constexpr double folded(const Team& team, double* of) noexcept {
    for (unsigned away = quad / 2; away > 0; away /= 2)
      for (unsigned s = 0; s < quad; ++s) of[s] += team.from((team.lane + away) % Team::lanes, of[s]);
    for (unsigned width = quad / 2; width > 0; width /= 2)
      for (unsigned s = 0; s < width; ++s) of[s] += of[s + width];
    return of[0];
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
