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

/// What a group runs: the functions in collectives/ and the exchange.
struct collectives {
  using world_type = mpi_progress;
  using group_state = mpi::group_state;
  using duration = clock::duration;

  [[nodiscard]] static collective_context context(group_state& state, lane which, duration limit) {
    return collective_context(state, which, limit);
  }

  template <operation What>
  using tag = operation_tag<What>;
  static void run(tag<operation::barrier>, const auto&... all) { mpi::barrier(all...); }
  static void run(tag<operation::all_reduce>, const auto&... all) { mpi::all_reduce(all...); }
  static void run(tag<operation::reduce_scatter>, const auto&... all) { mpi::reduce_scatter(all...); }
  static void run(tag<operation::reduce_scatter_v>, const auto&... all) { mpi::reduce_scatter_v(all...); }
  static void run(tag<operation::all_gather>, const auto&... all) { mpi::all_gather(all...); }
  static void run(tag<operation::all_gather_v>, const auto&... all) { mpi::all_gather_v(all...); }
  static void run(tag<operation::all_to_all>, const auto&... all) { mpi::all_to_all(all...); }
  static void run(tag<operation::all_to_all_v>, const auto&... all) { mpi::all_to_all_v(all...); }
  static void run(tag<operation::broadcast>, const auto&... all) { mpi::broadcast(all...); }
  static void run(tag<operation::reduce>, const auto&... all) { mpi::reduce(all...); }
  static void run(tag<operation::gather>, const auto&... all) { mpi::gather(all...); }
  static void run(tag<operation::scatter>, const auto&... all) { mpi::scatter(all...); }
  static void run(tag<operation::exchange>, group_state& state, lane which, duration limit,
                  std::span<const p2p> transfers, const where& at) {
    exchange_run(state, which, transfers, limit, at).run();
  }
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
