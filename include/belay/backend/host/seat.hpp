// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the holder of a world knows of one rank.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "belay/backend/host/process.hpp"
#include "belay/backend/host/wire.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's place, from the start to the end of the world. A seat is taken once.
struct seat {
  /// A wish to go on without those who failed.
  struct wish {
    std::uint64_t ticket = 0;
    moment until;
  };

  std::optional<process> child;   // whom the holder's process started for it, if it told
  std::optional<process> member;  // who joined, where that is not the child itself
  connection line;
  bool joined = false;
  bool said_goodbye = false;
  bool deaf = false;  // did not take an answer
  bool child_gone = false;
  bool over = false;  // the rank's process is gone
  std::optional<wish> shrink;
  std::optional<moment> stopped_since;
  bool told_stalled = false;
  bool beyond_reach = false;  // stopped, and not ours to kill

  /// The process that is this rank, if one is known and lives.
  [[nodiscard]] const process* alive() const noexcept {
    if (over) return nullptr;
    if (member) return &*member;
    return child && !child_gone ? &*child : nullptr;
  }
  [[nodiscard]] bool finished() const noexcept { return over && (!child || child_gone); }
  /// It will never again answer or ask.
  [[nodiscard]] bool left() const noexcept {
    return over || said_goodbye || beyond_reach || deaf || (joined && !line);
  }

  /// Looks whether it is stopped; true when that has lasted for the limit, once for each stop.
  [[nodiscard]] bool found_stalled(moment now, moment::duration limit) {
    const process* const living = alive();
    if (!joined || living == nullptr || !living->stopped()) {
      stopped_since.reset();
      told_stalled = false;
      return false;
    }
    if (!stopped_since) stopped_since = now;
    if (told_stalled || now - *stopped_since < limit) return false;
    return told_stalled = true;
  }

  /// "rank 2 (stopped)"
  [[nodiscard]] std::string text(int rank) const {
    std::string words = "rank " + std::to_string(rank);
    if (over) return words + " (gone)";
    if (!joined) return words + " (has not joined)";
    const process* const living = alive();
    return words + (living != nullptr && living->stopped() ? " (stopped)" : " (running)");
  }
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
