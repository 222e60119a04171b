// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// When a started communication begins: in its turn, or in its turn after an event.
//
//   belay::pending sum = group.start_all_reduce(gradients, belay::sum, belay::after(compute.record()));
#pragma once

#include <memory>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

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
  bool is_traced_elsewhere = false;
};

}  // namespace belay::inline BELAY_ABI
