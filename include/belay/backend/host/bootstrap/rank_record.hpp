// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The coordinator's record of one rank, and the watch that finds ranks whose process is stopped for too long.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank, from the start to the end of the world. It joins once.
struct rank_record {
  struct shrink_request {
    std::uint64_t ticket = 0;
    time_point until;
  };

  std::optional<watched_process> child;   // the process that the coordinator's process started for it, if it told
  std::optional<watched_process> member;  // the process that joined, where it is not the child itself
  connection socket;
  bool joined = false;
  bool said_goodbye = false;
  bool deaf = false;  // did not take an answer
  bool child_gone = false;
  bool over = false;  // the rank's process is gone
  std::optional<shrink_request> shrink;
  std::optional<time_point::duration> stopped_for;  // as far as it was seen
  bool told_stalled = false;
  bool beyond_reach = false;  // stopped, and this process may not kill it

  /// The process that is this rank, if one is known and lives.
  [[nodiscard]] const watched_process* alive() const noexcept;
  [[nodiscard]] bool finished() const noexcept { return over && (!child || child_gone); }
  /// It will never again answer or ask.
  [[nodiscard]] bool left() const noexcept {
    return over || said_goodbye || beyond_reach || deaf || (joined && !socket);
  }

  /// Whether a process of it is stopped: the rank, or the child that let another process join.
  [[nodiscard]] bool stopped() const noexcept;
  /// Looks whether it is stopped, `step` after the last look; true when that has lasted for the limit, once for each
  /// stop.
  [[nodiscard]] bool found_stalled(time_point::duration step, time_point::duration limit);

  /// "rank 2 (stopped)"
  [[nodiscard]] std::string text(int rank) const;
};

/// Finds ranks whose process is stopped for too long, by polling: the kernel reports no stop of another process. Looks
/// at all ranks each eighth of the limit, 10 to 250 ms apart, and when one may have reached it.
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

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/rank_record.ipp"  // IWYU pragma: export
#endif
