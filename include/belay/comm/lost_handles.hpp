// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Handles of started communications that nobody has waited for: counted in their destructors, and said by the next call
// of the rank in checked builds.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Of any thread.
class lost_handles {
 public:
  void note(where started_at) noexcept {
    const std::lock_guard lock(mutex_);
    ++count_;
    unreported_ = true;
    last_at_ = started_at;
  }
  [[nodiscard]] std::uint64_t count() const noexcept {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  /// Throws usage_error of the last, once, in checked builds.
  void tell([[maybe_unused]] const where& at) {
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(unreported_, false)) return;
      throw usage_error(
          "the communication started at " + last_at_.text() + " was never waited for; its buffers may still be in use",
          at);
    }
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  bool unreported_ = false;
  where last_at_;
};

}  // namespace belay::inline BELAY_ABI
