// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The bytes of a trainer's own memory that owed backwards say they keep. They are no lease, and count as one: in the
// meter of the device's tier, and in the row "owed activations" of a plan.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

/// One rank's. An owed backward opens its bytes and closes them; the end of a step closes all.
class owed_bytes {
 public:
  /// `meter` outlives this.
  explicit owed_bytes(tier_meter& meter) noexcept : meter_(&meter) {}

  /// An owed backward begins, or ends.
  void open(std::size_t bytes) noexcept {
    live_ += bytes;
    if (live_ > peak_) peak_ = live_;
    meter_->add(bytes);
  }
  void close(std::size_t bytes) noexcept {
    live_ -= bytes;
    meter_->remove(bytes);
  }
  /// The step has ended.
  void clear() noexcept { close(live_); }

  /// Bytes of what is owed now, and the most there were.
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }

 private:
  tier_meter* meter_;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace belay::inline BELAY_ABI
