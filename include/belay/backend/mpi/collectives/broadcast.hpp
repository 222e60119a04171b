// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Broadcast: the root sends its buffer to all.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <span>

#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

template <transferable T>
void broadcast(collective_context me, std::span<T> inout, int root, const where& at) {
  check_root(root, me.size(), "broadcast", at);
  check_bytes(inout, "broadcast", at);
  me.enter({operation::broadcast, reduction::none, element_code_of<T>(), root, inout.size(), 0}, {}, {}, at);
  me.move([&](int q, transfer& with) {
    if (me.rank() == root) with.send(inout.data(), inout.size());
    if (q == root) with.receive(inout.data(), inout.size());
  });
  me.leave();
}

inline void run_collective(operation_tag<operation::broadcast>, const auto&... all) { broadcast(all...); }

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
