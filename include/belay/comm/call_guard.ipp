// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The handles that were lost, counted, and the error that says so.
#pragma once

#include <utility>

#include "belay/comm/call_guard.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void lost_handles::note(where started_at) noexcept {
  const std::lock_guard lock(mutex_);
  ++count_;
  unreported_ = true;
  last_at_ = started_at;
}

BELAY_DECL std::uint64_t lost_handles::count() const noexcept {
  const std::lock_guard lock(mutex_);
  return count_;
}

BELAY_DECL void lost_handles::tell([[maybe_unused]] const where& at) {
  if constexpr (checked(check_level::local)) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(unreported_, false)) return;
    throw usage_error(
        "the communication started at " + last_at_.text() + " was never waited for; its buffers may still be in use",
        at);
  }
}

}  // namespace belay::inline BELAY_ABI
