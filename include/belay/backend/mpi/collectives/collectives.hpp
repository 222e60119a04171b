// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which function runs an operation of a group. MPI moves the bytes, in point-to-point messages; what is reduced is
// reduced here.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <span>

#include "belay/backend/mpi/collectives/all_gather.hpp"
#include "belay/backend/mpi/collectives/all_reduce.hpp"
#include "belay/backend/mpi/collectives/all_to_all.hpp"
#include "belay/backend/mpi/collectives/broadcast.hpp"
#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/backend/mpi/collectives/gather.hpp"
#include "belay/backend/mpi/collectives/reduce.hpp"
#include "belay/backend/mpi/collectives/reduce_scatter.hpp"
#include "belay/backend/mpi/collectives/scatter.hpp"
#include "belay/backend/mpi/p2p/exchange.hpp"
#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/basic_group.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/lane.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

inline void barrier(collective_context me, const where& at) {
  me.enter({operation::barrier, reduction::none, {}, -1, 0, 0}, {}, {}, at);
  me.leave();
}
inline void run_collective(operation_tag<operation::barrier>, const auto&... all) { barrier(all...); }

/// What a group runs: the functions in collectives/ and the exchange.
struct collectives {
  using world_type = mpi_progress;
  using group_state = mpi::group_state;
  using duration = clock::duration;

  [[nodiscard]] static collective_context context(group_state& state, lane which, duration limit) {
    return collective_context(state, which, limit);
  }

  /// By the overload that the operation's own file has.
  template <operation What>
  static void run(operation_tag<What> what, const collective_context& context, const auto&... all) {
    run_collective(what, context, all...);
  }
  static void run(operation_tag<operation::exchange>, group_state& state, lane which, duration limit,
                  std::span<const p2p> transfers, const where& at) {
    exchange_run(state, which, transfers, limit, at).run();
  }
  static void tell_first_start(group_state& state, operation what, const where& at) {
    collective_context(state, lane::caller, {}).tell_first_start(what, at);
  }
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
