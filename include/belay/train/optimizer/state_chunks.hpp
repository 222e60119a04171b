// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The state of an optimizer in chunks of one size, in which it streams through a ring: an element for each that the
// rank owns, in the order of its ranges.
// IWYU pragma: private, include "belay/train/optimizer.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/parallel/bucket/reduced.hpp"

namespace belay::inline BELAY_ABI {

class state_chunks {
 public:
  /// Where a chunk begins: an element of a range, and one of the state.
  struct chunk {
    std::size_t range = 0, offset = 0;
    std::size_t first = 0, count = 0;
  };

  state_chunks() = default;
  /// Of `most` elements each, but for the last.
  template <class T>
  state_chunks(std::span<const owned_range<T>> owned, std::size_t most) {
    chunk next;
    for (std::size_t r = 0; r < owned.size(); ++r)
      for (std::size_t done = 0; done < owned[r].count;) {
        if (next.count == 0) next = {r, done, next.first, 0};
        const std::size_t taken = lesser_of(most - next.count, owned[r].count - done);
        next.count += taken;
        done += taken;
        if (next.count < most) continue;
        all_.push_back(next);
        next = {0, 0, next.first + next.count, 0};
      }
    if (next.count > 0) all_.push_back(next);
  }

  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] const chunk& operator[](std::size_t number) const noexcept { return all_[number]; }

  /// Calls `visit(range, offset in it, element of the chunk, count)` for each part of a range that a chunk has.
  template <class T, class Visit>
  static void each_part(const chunk& of, std::span<const owned_range<T>> owned, Visit&& visit) {
    std::size_t r = of.range, offset = of.offset;
    for (std::size_t done = 0; done < of.count; ++r, offset = 0) {
      const std::size_t count = lesser_of(owned[r].count - offset, of.count - done);
      if (count > 0) visit(owned[r], offset, done, count);
      done += count;
    }
  }

 private:
  std::vector<chunk> all_;
};

}  // namespace belay::inline BELAY_ABI
