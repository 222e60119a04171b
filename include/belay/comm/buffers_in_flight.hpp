// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The buffers of started operations, from the start until the wait. In checked builds a call that uses one of them is
// an error that names the line of the start, instead of a race with the communication thread.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>

#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The bytes that one operation reads, and those that it writes.
struct buffer_use {
  std::span<const std::byte> reads;
  std::span<const std::byte> writes;
};

/// Used from any thread: a handle may be lost where it was refused. In a release it does nothing.
template <std::size_t Capacity>
class buffers_in_flight {
 public:
  /// `by` was started as operation `number`, for which the table has room.
  void add([[maybe_unused]] std::uint64_t number, [[maybe_unused]] const buffer_use& what,
           [[maybe_unused]] operation by, [[maybe_unused]] const where& at) {
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(mutex_);
      buffer_in_use& slot = table_[number % Capacity];
      if (slot.number == 0) ++count_;
      slot = {number, what, by, at};
    }
  }
  /// It was waited for, or its handle was lost.
  void remove([[maybe_unused]] std::uint64_t number) {
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(mutex_);
      buffer_in_use& slot = table_[number % Capacity];
      if (slot.number != number) return;
      slot.number = 0;
      --count_;
    }
  }

  /// Throws usage_error when a call would write what a started operation reads or writes, or read what one writes.
  void expect_free([[maybe_unused]] const buffer_use& what, [[maybe_unused]] operation by,
                   [[maybe_unused]] const where& at) const {
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(mutex_);
      if (count_ == 0) return;
      for (const buffer_in_use& each : table_) {
        if (each.number == 0) continue;
        if (!overlap(what.writes, each.what.writes) && !overlap(what.writes, each.what.reads) &&
            !overlap(what.reads, each.what.writes))
          continue;
        throw usage_error(std::string(name(by)) + ": its buffer is in use by the " + name(each.by) + " started at " +
                              each.at.text() + " until that is waited for",
                          at);
      }
    }
  }

 private:
  struct buffer_in_use {
    std::uint64_t number = 0;  // 0: free
    buffer_use what;
    operation by = operation::none;
    where at;
  };

  [[nodiscard]] static bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
    const std::less<const std::byte*> before;
    return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
  }

  mutable std::mutex mutex_;
  std::array<buffer_in_use, Capacity> table_{};
  std::size_t count_ = 0;
};

}  // namespace belay::inline BELAY_ABI
