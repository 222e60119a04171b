// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Finds ranks whose process is stopped for too long, by polling: the kernel reports no stop of another process.
// IWYU pragma: private, include "belay/backend/host/processes.hpp"
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/bootstrap/rank_record.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Looks at all ranks each eighth of the limit, 10 to 250 ms apart, and when one may have reached it.
class stall_watch {
 public:
  using duration = time_point::duration;

  explicit stall_watch(duration limit) noexcept
      : limit_(limit), last_(std::chrono::steady_clock::now()), next_(last_) {}

  [[nodiscard]] time_point next() const noexcept { return next_; }

  /// `tell(rank)` for each that has been stopped for the limit, once for each stop. Does nothing before `next()`.
  template <class Tell>
  void look(std::vector<rank_record>& seats, time_point now, Tell tell) {
    if (now < next_) return;
    const duration pause =
        std::clamp<duration>(limit_ / 8, std::chrono::milliseconds(10), std::chrono::milliseconds(250));
    // A long gap says that this process was stopped too (Ctrl-Z stops all): the ranks are not charged with it.
    const duration longest = lesser_of<duration>(limit_ / 2, std::chrono::seconds(1));
    const duration step = lesser_of(now - last_, longest);
    last_ = now;
    next_ = now + pause;
    for (std::size_t i = 0; i < seats.size(); ++i) {
      rank_record& here = seats[i];
      if (here.found_stalled(step, limit_)) tell(static_cast<int>(i));
      if (here.stopped_for && !here.told_stalled) next_ = lesser_of(next_, now + (limit_ - *here.stopped_for));
    }
  }

 private:
  duration limit_;
  time_point last_, next_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
