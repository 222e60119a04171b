// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Divides the units (chunks, or 2^k of them) of a replica group's buckets among its ranks, so that what they own is
// even over all buckets and not only within each: a small bucket has fewer units than a large replica group has ranks.
// Ranks that own the least are filled to one level, in rank order; a unit goes to the rank whose room holds the unit's
// middle. So no rank ever owns more than the mean and one unit, whatever the sizes.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <vector>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The shards of one replica group. Every rank computes them alone, from sizes and the number of ranks (1 or more).
class even_shards {
 public:
  explicit even_shards(std::size_t ranks) : owned_(ranks) {}

  /// Begins a bucket of `elements`. Its units follow by `give`, in the order of memory, with as many elements
  /// together.
  void begin(std::size_t elements) noexcept {
    total_ += elements;
    level_ = total_ / owned_.size();
    std::size_t filled = 0;
    std::size_t below = owned_.size();
    for (std::size_t last = below + 1; below != last;) {  // few rounds: ranks lie within two units of each other
      last = below;
      below = 0;
      filled = elements;
      for (std::size_t owned : owned_) {
        if (owned > level_) continue;
        filled += owned;
        ++below;
      }
      level_ = filled / below;
    }
    remainder_ = filled % below;
    given_ = 0;
    rank_ = 0;
    end_ = room();
  }

  /// Gives the next `units`, of `elements` each (1 or more), to ranks, and calls `visit(rank, units)` for each that
  /// gets some.
  template <class Visit>
  void give(std::size_t units, std::size_t elements, Visit&& visit) {
    while (units > 0) {
      const std::size_t middle = given_ + elements / 2;
      if (middle >= end_) {
        ++rank_;
        end_ += room();
        continue;
      }
      const std::size_t fitting = (end_ - middle - 1) / elements + 1;
      const std::size_t taken = fitting < units ? fitting : units;
      visit(rank_, taken);
      owned_[rank_] += taken * elements;
      given_ += taken * elements;
      units -= taken;
    }
  }

 private:
  // What the current rank lacks to the level. Those of the bucket's elements that the level leaves go to the first
  // ones.
  [[nodiscard]] std::size_t room() noexcept {
    const std::size_t owned = owned_[rank_];
    if (owned > level_) return 0;
    const std::size_t one = remainder_ > 0 ? 1 : 0;
    remainder_ -= one;
    return level_ - owned + one;
  }

  std::vector<std::size_t> owned_;  // elements of each rank so far
  std::size_t total_ = 0;
  std::size_t level_ = 0;
  std::size_t remainder_ = 0;
  std::size_t given_ = 0;  // elements of the bucket so far
  std::size_t rank_ = 0;   // that gets the next unit
  std::size_t end_ = 0;    // of its room, counted as `given_`
};

}  // namespace belay::inline BELAY_ABI
