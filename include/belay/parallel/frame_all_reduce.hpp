// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An all_reduce inside of a layer, such as that of a row-parallel matrix: what the compute stream queues next has the
// result, and the host does not wait where streams run by themselves.
//
//   frame.product(y, hidden, belay::transposed(frame.read(second)));     // this rank's part of the columns
//   belay::frame_all_reduce(frame, mesh.tensor(), y.flat(), belay::sum);  // the sum over the tensor axis
#pragma once

#include <span>
#include <utility>

#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"

namespace belay::inline BELAY_ABI {

/// Reduces `values`, memory of the frame, in place, after what the frame has queued and before what it queues. Not done
/// in a rehearsal. Collective over the group, for whose ranks the layer is called in the same order; what the operation
/// throws comes at the host's next wait where the stream runs by itself.
template <class Frame, communicator Group, class T, class Op>
void frame_all_reduce(Frame& frame, const Group& group, std::span<T> values, Op op, where at = where::current()) {
  if (group.size() == 1) return;
  auto& stream = frame.engine().compute();
  if constexpr (can_start_all_reduce<Group, T>) {
    if (runs_later(stream)) {
      pending under_way = group.start_all_reduce(values, op, start_order(after(stream.record(), at)));
      return std::move(under_way).then(stream, at);
    }
  }
  frame.run_on_host([&] { group.all_reduce(values, op, at); });
}

}  // namespace belay::inline BELAY_ABI
