// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks' buffers hold: a table of numbers, none of them zero, from which every rank can tell what every other
// one has. Timed inputs are written anew before each call, because gradients always are: what lies unchanged in a
// peer's cache makes every collective look fast.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "belay/comm/reduction.hpp"
#include "belay/core/copy.hpp"

namespace bench {

template <class T>
class pattern {
 public:
  pattern() : table_(2 * period) {
    std::uint32_t state = 12345;
    for (std::size_t i = 0; i < period; ++i) {
      state = state * 1664525U + 1013904223U;
      const auto number = static_cast<std::int32_t>(state >> 16 & 0x7fff) + 1;
      if constexpr (std::is_integral_v<T>)
        table_[i] = static_cast<T>(number % 127 + 1);
      else
        table_[i] = static_cast<T>(static_cast<float>(number) / 16384.0F + 0.0625F);
    }
    std::copy_n(table_.begin(), period, table_.begin() + period);
  }

  /// Element `i` of rank `rank`'s input in its `round`-th version.
  [[nodiscard]] T at(int rank, std::size_t i, unsigned round) const noexcept {
    return table_[start(rank, i / period, round) + i % period];
  }

  /// Writes `count` elements through the caches, as a computation would.
  void write(T* to, std::size_t count, int rank, unsigned round) const noexcept {
    for (std::size_t i = 0; i < count; i += period) {
      const T* from = table_.data() + start(rank, i / period, round);
      belay::copy_bytes(to + i, from, std::min(period, count - i) * sizeof(T), belay::memory_access::temporal);
    }
  }

  /// The ordered reduction over all ranks of element `i`: ((x0 + x1) + x2) + ..., rounded once.
  template <class Op>
  [[nodiscard]] T reduced(int ranks, std::size_t i, unsigned round) const noexcept {
    using accumulator = belay::accumulator_of<T>;
    auto total = static_cast<accumulator>(at(0, i, round));
    for (int q = 1; q < ranks; ++q) total = Op::apply(total, static_cast<accumulator>(at(q, i, round)));
    if constexpr (belay::finishing<Op>) total = Op::finish(total, ranks);
    return static_cast<T>(total);
  }

 private:
  static constexpr std::size_t period = 4096;

  // Blocks, ranks and rounds differ, so that a part in the wrong place is seen.
  [[nodiscard]] static std::size_t start(int rank, std::size_t block, unsigned round) noexcept {
    return (static_cast<std::size_t>(rank) * 641 + block * 131 + round * 97) % period;
  }

  std::vector<T> table_;
};

}  // namespace bench
