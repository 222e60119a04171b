// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The order of communications: the two lanes in which the ranks of a group meet, and which of them a call takes; and
// when a started communication begins: in its turn, or in its turn after an event.
//
//   belay::pending sum = group.start_all_reduce(gradients, belay::sum, belay::after(compute.record()));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// A group has a meeting point in each lane. Collectives of a group of which nothing was started yet meet in the
/// caller's, and from its first start on all of them in the stream's: they have one order. The first start is told in
/// the caller's lane, as the last thing there: who calls instead of starting differs from it. Transfers between pairs,
/// which not all ranks call, stay in the lane of who runs them.
enum class lane : std::uint8_t { caller, stream };

/// How many lanes there are, all of them, and the number of one from 0.
inline constexpr std::size_t lane_count = 2;
inline constexpr lane all_lanes[] = {lane::caller, lane::stream};
[[nodiscard]] constexpr std::size_t index(lane which) noexcept { return static_cast<std::size_t>(which); }

/// The order of a group's collectives, as one rank knows: its ranks start the same, so all know the same.
class collective_order {
 public:
  /// Whether it is the first.
  [[nodiscard]] bool note_started() noexcept { return std::exchange(blocking_, lane::stream) == lane::caller; }
  /// Where a blocking one meets the other ranks.
  [[nodiscard]] lane blocking() const noexcept { return blocking_; }

 private:
  lane blocking_ = lane::caller;
};

/// A started communication begins when what `event` marks is done. It fails, for all ranks of its group, where that has
/// failed or takes longer than the group waits for peers.
struct after {
  /// A place in a stream that an operation begins after, and where that was said.
  explicit after(stream_event what, where started_at = where::current()) noexcept
      : event(std::move(what)), at(started_at) {}
  stream_event event;
  where at;
};

/// The last argument of everything that is started: nothing, or `after(event)`.
struct start_order {
  /// At that site, at once; or after an event.
  start_order(where started_at) noexcept : at(started_at) {}
  start_order(belay::after order) noexcept : event(std::move(order.event)), at(order.at) {}

  /// This order, and `what` lives until the communication is over, also where nobody waits for it any more.
  [[nodiscard]] start_order keeping(std::shared_ptr<const void> what) const {
    start_order out = *this;
    out.kept = std::move(what);
    return out;
  }
  /// This order, of a composite in whose largest collective a rank gives its peers so many bytes: a rehearsal, which
  /// runs no composite, sees them here.
  [[nodiscard]] start_order giving(std::size_t bytes) const {
    start_order out = *this;
    out.given_bytes = bytes;
    return out;
  }
  /// This order, for an operation whose span is written elsewhere, by the caller that starts it.
  [[nodiscard]] start_order traced_elsewhere() const {
    start_order out = *this;
    out.is_traced_elsewhere = true;
    return out;
  }

  /// The event that the operation begins after, where it was started, and the object that it keeps alive until it has
  /// run.
  stream_event event;
  where at;
  std::shared_ptr<const void> kept;
  std::size_t given_bytes = 0;
  bool is_traced_elsewhere = false;
};

}  // namespace belay::inline BELAY_ABI
