// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives of a group over MPI, as its calls run them.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// The calls that a group runs. They were checked; they throw comm_error.
struct collectives {
  using world_type = mpi_progress;
  using group_state = mpi::group_state;
  using duration = clock::duration;

  static void run(group_state& state, lane which, duration limit, const op_call& call);
  /// Posts the header of what was started first, as the last one of the caller's lane.
  static void tell_first_start(group_state& state, operation what, const where& at);
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/mpi/collectives/call.ipp"  // IWYU pragma: export
#endif
