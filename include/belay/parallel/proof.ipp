// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The faults of a schedule in words.
#pragma once

#include "belay/parallel/proof.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string schedule::explain_memory(const fault& found) {
  return "keeps " + std::to_string(found.bytes) + " bytes on rank " + std::to_string(found.rank) + ", which has " +
         std::to_string(found.budget);
}

BELAY_DECL std::string explain(const schedule::fault& found) {
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
    case fault_kind::chunk_unknown:
      return "the rank of " + stage + " names a chunk that it does not hold, for " + batch + at;
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
    case fault_kind::input_gradient_twice: return stage + " computes the input gradient of " + batch + " twice" + at;
    case fault_kind::weight_gradient_missing:
      return stage + " computes the input gradient of " + batch + " but never its weight gradient";
    case fault_kind::weight_gradient_twice: return stage + " computes the weight gradient of " + batch + " twice" + at;
    case fault_kind::weight_gradient_before_input_gradient:
      return stage + " computes the weight gradient of " + batch + " before its input gradient" + at;
    case fault_kind::weight_gradient_out_of_order:
      return stage + " computes the weight gradient of " + batch + " after that of a later one" + at +
             "; they are added in the order 0, 1, 2, ... so that gradients keep their bits";
    case fault_kind::backward_whole_and_halves:
      return stage + " runs the backward of " + batch + " as a whole and in halves" + at;
    case fault_kind::pair_without_backward:
      return stage + " runs the forward of " + batch + " beside a backward, and none comes directly after it" + at;
    case fault_kind::pair_of_one_micro_batch:
      return stage + " runs the forward of " + batch + " beside its own backward, which needs it" + at;
    case fault_kind::offload_misplaced:
      return stage + " offloads " + batch + at + " twice, or not between its forward and its backward";
    case fault_kind::reload_misplaced:
      return stage + " reloads " + batch + at + " twice, or not between its offload and its backward";
    case fault_kind::backward_before_reload:
      return stage + " runs the backward of " + batch + " before what its forward left is reloaded" + at;
    case fault_kind::recompute_misplaced:
      return stage + " recomputes " + batch + at +
             " twice, or not between its forward, or its reload, and its backward";
    case fault_kind::compute_before_gather:
      return stage + " computes " + batch + " while its parameters are not gathered" + at;
    case fault_kind::gather_twice: return stage + " gathers parameters that are gathered" + at;
    case fault_kind::release_before_gather: return stage + " releases parameters that are not gathered" + at;
    case fault_kind::release_missing: return stage + " gathers its parameters and never releases them";
    case fault_kind::weight_gradient_after_reduce:
      return stage + " computes the weight gradient of " + batch + " after its gradients were reduced" + at;
    case fault_kind::reduce_twice: return stage + " reduces its gradients twice" + at;
    case fault_kind::reduce_missing: return stage + " never reduces its gradients, and others do";
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
    case fault_kind::memory_exceeded: return "it " + explain_memory(found);
  }
  return "unknown fault";
}

}  // namespace belay::inline BELAY_ABI
