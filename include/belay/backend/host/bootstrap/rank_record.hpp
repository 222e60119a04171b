// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the coordinator of a world knows of one rank.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
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

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/rank_record.ipp"  // IWYU pragma: export
#endif
