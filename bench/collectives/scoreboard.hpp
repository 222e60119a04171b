// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the ranks of the benchmark synchronize beside what they measure: one scoreboard in memory that all have mapped.
// It aligns them before a sample, finds the slowest rank's time, and uses none of the code that is measured.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/spin.hpp"

namespace bench {

/// A line that one rank writes. Two lines apart, because processors fetch them in pairs.
struct alignas(128) line {
  std::atomic<std::uint64_t> flag{0};
  double value = 0;
};

class scoreboard {
 public:
  static constexpr std::size_t bytes_for(int ranks) noexcept {
    return sizeof(line) * (2 * static_cast<std::size_t>(ranks) + 1);
  }

  /// `memory` is zero at first, the same on every rank, and `bytes_for(ranks)` long.
  scoreboard(void* memory, int rank, int ranks, variants how) noexcept
      : lines_(static_cast<line*>(memory)), rank_(rank), ranks_(ranks), manners_(how) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  [[nodiscard]] variants how() const noexcept { return manners_; }

  /// All ranks arrive before one goes on.
  void align() {
    ++rounds_;
    at(rank_).flag.store(rounds_, std::memory_order_release);
    for (int q = 0; q < ranks_; ++q) {
      if (q != rank_) look_until([&] { return at(q).flag.load(std::memory_order_acquire) >= rounds_; }, manners_);
    }
  }

  [[nodiscard]] double largest(double mine) {
    return folded(mine, [](double a, double b) { return std::max(a, b); });
  }
  [[nodiscard]] double sum_of(double mine) {
    return folded(mine, [](double a, double b) { return a + b; });
  }

  /// Microseconds of one message there and back between the first two ranks, known to all of them; 0 for one rank.
  [[nodiscard]] double round_trip(int trips);

 private:
  [[nodiscard]] line& at(int rank) const noexcept { return lines_[static_cast<std::size_t>(rank)]; }
  // Two lines used alternately, so that an early rank does not overwrite what others still read.
  [[nodiscard]] double folded(double mine, double (*fold)(double, double)) {
    at(rank_).value = mine;
    align();
    double out = at(0).value;
    for (int q = 1; q < ranks_; ++q) out = fold(out, at(q).value);
    align();
    return out;
  }

  line* lines_;
  int rank_;
  int ranks_;
  variants manners_;
  std::uint64_t rounds_ = 0;
  std::uint64_t trips_ = 0;
};

}  // namespace bench
