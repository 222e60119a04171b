// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group of ranks under MPI: the handle that user code calls. Each lane has a communicator of its own.
//
//   belay::mpi::world().run([](belay::mpi::rank& rank) {
//     std::vector<float> loss(1, static_cast<float>(rank.number()));
//     rank.world().all_reduce(std::span(loss), belay::sum);  // the sum of the numbers, on every rank
//   });
#pragma once

#include <cstddef>

#include "belay/backend/mpi/collectives/call.hpp"
#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/async_stream.hpp"
#include "belay/comm/basic_group.hpp"
#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

using async_stream = belay::async_stream<mpi_progress>;

/// See `basic_group`, and `group_operations` for what it can do.
class group : public basic_group<group, collectives> {
 public:
  /// The group's promises: sums are added in rank order, and parts may differ in size.
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;

  using basic_group::basic_group;

  /// Returns when all ranks have asked for symmetric memory of the same size; collective. The memory itself is each
  /// rank's own (see symmetric_heap).
  void agree_symmetric(std::size_t bytes, where at = where::current()) const {
    const blocking_call call(*this, operation::make_symmetric, {}, at);
    if (alone()) return;
    run_collective(collective_context(state(), lane_of_call(operation::make_symmetric, at), limit()),
                   op_call::make_symmetric(bytes, at));
  }
};

static_assert(has_all_operations<group> && mirrored_by_messages<group>);

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
