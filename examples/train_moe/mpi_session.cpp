// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A session over MPI. Without MPI it throws.
#if defined(BELAY_TRAIN_MOE_MPI)

#include "belay/backend/mpi.hpp"
#include "train_moe/host_ranks.hpp"
#include "train_moe/nccl_trainer.hpp"

namespace train_moe {

void run_mpi_session(prepared_run& prepared) {
#if defined(BELAY_TRAIN_MOE_NCCL)
  if (prepared.line.placed) return run_mpi_over_nccl(prepared);
#endif
  run_on(belay::mpi::world{}, prepared);
}

}  // namespace train_moe

#else

#include "belay/core/error.hpp"

namespace train_moe {

struct prepared_run;
void run_mpi_session(prepared_run&);

void run_mpi_session(prepared_run&) {
  throw belay::input_error("--backend mpi: this train_moe was built without MPI (Debian: libopenmpi-dev openmpi-bin)");
}

}  // namespace train_moe

#endif
