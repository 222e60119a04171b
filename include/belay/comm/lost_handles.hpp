// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Handles of started communications that nobody has waited for: counted in their destructors, and said by the next call
// of the rank in checked builds.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstdint>
#include <mutex>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Of any thread.
class lost_handles {
 public:
  void note(where started_at) noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept;
  /// Throws usage_error of the last, once, in checked builds.
  void tell([[maybe_unused]] const where& at);

 private:
  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  bool unreported_ = false;
  where last_at_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/lost_handles.ipp"  // IWYU pragma: export
#endif
