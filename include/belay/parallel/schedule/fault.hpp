// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What can be wrong with a schedule, and the sentence that says so.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/core/config.hpp"
#include "belay/parallel/schedule/action.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// Causes come before their consequences: of several faults a proof reports the earliest class, and of that the first
/// in stage and action order.
enum class fault_kind : std::uint8_t {
  none,
  // The table is malformed.
  micro_batch_unknown,
  chunk_unknown,
  route_unknown,
  group_size,
  // A compute is missing or misplaced.
  forward_missing,
  forward_twice,
  backward_missing,
  backward_twice,
  backward_before_forward,
  backward_out_of_order,
  weight_gradient_missing,
  // Sends and receives do not pair up.
  transfer_twice,
  send_unmatched,
  receive_unmatched,
  order_mismatch,
  // A tensor is used before it has arrived or was computed.
  forward_before_receive,
  backward_before_receive,
  send_before_compute,
  // Everything else is right, and the schedule does not end.
  deadlock,
};

enum class fault_class : std::uint8_t { none, malformed, compute, pairing, data, deadlock };

[[nodiscard]] constexpr fault_class class_of(fault_kind kind) noexcept {
  if (kind == fault_kind::none) return fault_class::none;
  if (kind <= fault_kind::group_size) return fault_class::malformed;
  if (kind <= fault_kind::weight_gradient_missing) return fault_class::compute;
  if (kind <= fault_kind::order_mismatch) return fault_class::pairing;
  if (kind <= fault_kind::send_before_compute) return fault_class::data;
  return fault_class::deadlock;
}

/// The value of a number that does not apply to a fault.
inline constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

/// The first fault of a table. `action` is the index in the stage's list, `nowhere` where something is absent.
struct fault {
  fault_kind kind = fault_kind::none;
  std::size_t stage = nowhere;
  std::size_t micro_batch = nowhere;
  std::size_t action = nowhere;
  // For transfers only:
  payload what = payload::activation;
  transfer_direction direction = transfer_direction::send;
  std::size_t peer = nowhere;
  std::size_t peer_micro_batch = nowhere;  // of an order_mismatch: what the peer sends instead

  friend constexpr bool operator==(const fault&, const fault&) = default;
};

}  // namespace schedule

/// The fault as one sentence; "" where there is none.
[[nodiscard]] inline std::string explain(const schedule::fault& found) {
  using schedule::fault_kind;
  using schedule::nowhere;
  const std::string batch = "micro-batch " + std::to_string(found.micro_batch);
  const std::string stage = "stage " + std::to_string(found.stage);
  const std::string peer = "stage " + std::to_string(found.peer);
  const std::string tensor = std::string("the ") + name(found.what) + " of " + batch;
  const bool sends = found.direction == schedule::transfer_direction::send;
  const std::string at = found.action == nowhere ? "" : " (action " + std::to_string(found.action) + ")";
  switch (found.kind) {
    case fault_kind::none: return "";
    case fault_kind::micro_batch_unknown: return stage + " names " + batch + ", which the schedule does not have" + at;
    case fault_kind::chunk_unknown: return stage + " names a chunk other than 0 for " + batch + at;
    case fault_kind::route_unknown:
      return stage + (sends ? " sends " : " receives ") + tensor + (sends ? " to " : " from ") + peer +
             ", but activations go to the next stage and gradients to the one before" + at;
    case fault_kind::group_size: return stage + " has an exchange that does not hold 1 to 4 transfers" + at;
    case fault_kind::forward_missing: return stage + " never runs the forward of " + batch;
    case fault_kind::forward_twice: return stage + " runs the forward of " + batch + " twice" + at;
    case fault_kind::backward_missing: return stage + " never runs the backward of " + batch;
    case fault_kind::backward_twice: return stage + " runs the backward of " + batch + " twice" + at;
    case fault_kind::backward_before_forward:
      return stage + " runs the backward of " + batch + " before its forward" + at;
    case fault_kind::backward_out_of_order:
      return stage + " runs the backward of " + batch + " after that of a later one" + at +
             "; backwards run in the order 0, 1, 2, ... so that gradients keep their bits";
    case fault_kind::weight_gradient_missing:
      return stage + " computes the input gradient of " + batch + " but never its weight gradient";
    case fault_kind::transfer_twice:
      return stage + (sends ? " sends " : " receives ") + tensor + (sends ? " to " : " from ") + peer + " twice" + at;
    case fault_kind::send_unmatched:
      return stage + " sends " + tensor + " to " + peer + ", which never receives it" + at;
    case fault_kind::receive_unmatched:
      return stage + " receives " + tensor + " from " + peer + ", which never sends it" + at;
    case fault_kind::order_mismatch:
      return stage + " receives " + tensor + at + " where " + peer + " sends that of micro-batch " +
             std::to_string(found.peer_micro_batch) + "; sends and receives between two stages run in one order";
    case fault_kind::forward_before_receive:
      return stage + " runs the forward of " + batch + " before its activation is received" + at;
    case fault_kind::backward_before_receive:
      return stage + " runs the backward of " + batch + " before its gradient is received" + at;
    case fault_kind::send_before_compute:
      return stage + " sends " + tensor + " to " + peer + " before it is computed" + at;
    case fault_kind::deadlock:
      return stage + " waits for ever to " + (sends ? "send " : "receive ") + tensor + (sends ? " to " : " from ") +
             peer + at + ": both sides wait in other exchanges; put transfers that cross into one exchange";
  }
  return "unknown fault";
}

}  // namespace belay::inline BELAY_ABI
