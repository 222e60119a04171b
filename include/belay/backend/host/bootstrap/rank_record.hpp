// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the holder of a world knows of one rank.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's place, from the start to the end of the world. A seat is taken once.
struct rank_record {
  /// A wish to go on without those who failed.
  struct wish {
    std::uint64_t ticket = 0;
    time_point until;
  };

  std::optional<watched_process> child;   // whom the holder's process started for it, if it told
  std::optional<watched_process> member;  // who joined, where that is not the child itself
  connection line;
  bool joined = false;
  bool said_goodbye = false;
  bool deaf = false;  // did not take an answer
  bool child_gone = false;
  bool over = false;  // the rank's process is gone
  std::optional<wish> shrink;
  std::optional<time_point::duration> stopped_for;  // as far as it was seen
  bool told_stalled = false;
  bool beyond_reach = false;  // stopped, and not ours to kill

  /// The process that is this rank, if one is known and lives.
  [[nodiscard]] const watched_process* alive() const noexcept {
    if (over) return nullptr;
    if (member) return &*member;
    return child && !child_gone ? &*child : nullptr;
  }
  [[nodiscard]] bool finished() const noexcept { return over && (!child || child_gone); }
  /// It will never again answer or ask.
  [[nodiscard]] bool left() const noexcept { return over || said_goodbye || beyond_reach || deaf || (joined && !line); }

  /// Whether a process of it is stopped: the rank, or who was started for it and let another join.
  [[nodiscard]] bool stopped() const noexcept {
    return (member && !over && member->stopped()) || (child && !child_gone && child->stopped());
  }
  /// Looks whether it is stopped, `step` after the last look; true when that has lasted for the limit, once for each
  /// stop. From the start to the end of its processes.
  [[nodiscard]] bool found_stalled(time_point::duration step, time_point::duration limit) {
    if (!stopped()) {
      stopped_for.reset();
      told_stalled = false;
      return false;
    }
    stopped_for = stopped_for ? *stopped_for + step : time_point::duration(0);
    if (told_stalled || *stopped_for < limit) return false;
    return told_stalled = true;
  }

  /// "rank 2 (stopped)"
  [[nodiscard]] std::string text(int rank) const {
    std::string words = "rank " + std::to_string(rank);
    if (over) return words + " (gone)";
    if (!joined) return words + (stopped() ? " (has not joined, stopped)" : " (has not joined)");
    return words + (stopped() ? " (stopped)" : " (running)");
  }
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
