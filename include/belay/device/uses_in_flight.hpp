// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The bytes of an arena that work of other streams uses, and until when.
// IWYU pragma: private, include "belay/device/arena.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/device/stream_clock.hpp"

namespace belay::inline BELAY_ABI {

/// Has room for as many uses as were in flight at a time.
class uses_in_flight {
 public:
  [[nodiscard]] bool empty() const noexcept { return uses_.empty(); }

  /// Bytes from `first` on are used until what `until` says; one that was said of the same place without an end has it
  /// now. Forgets what `now` comes after.
  void add(std::size_t first, std::size_t bytes, const stream_clock& until, const stream_clock& now) {
    forget(now);
    for (use& one : uses_) {
      if (one.first != first || one.until != stream_clock::unknown()) continue;
      one = {first, first + bytes, until};
      return;
    }
    uses_.push_back({first, first + bytes, until});
  }
  void forget(const stream_clock& now) noexcept {
    std::erase_if(uses_, [&](const use& one) { return now.covers(one.until); });
  }

  [[nodiscard]] bool within(std::size_t first, std::size_t bytes) const noexcept {
    return std::any_of(uses_.begin(), uses_.end(), [&](const use& one) { return one.meets(first, bytes); });
  }
  /// `used` becomes what comes after all uses of these bytes.
  void join(std::size_t first, std::size_t bytes, stream_clock& used) const noexcept {
    for (const use& one : uses_)
      if (one.meets(first, bytes)) used.join(one.until);
  }
  /// Ends uses that were never begun; `used` becomes what comes after all others.
  void join_known(stream_clock& used) noexcept {
    std::erase_if(uses_, [](const use& one) { return one.until == stream_clock::unknown(); });
    for (const use& one : uses_) used.join(one.until);
  }

 private:
  struct use {
    std::size_t first, end;
    stream_clock until;

    [[nodiscard]] bool meets(std::size_t from, std::size_t bytes) const noexcept {
      return first < from + bytes && from < end;
    }
  };

  std::vector<use> uses_;
};

}  // namespace belay::inline BELAY_ABI
