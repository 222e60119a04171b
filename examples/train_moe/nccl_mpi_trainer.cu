// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A session over NCCL whose ranks mpirun has started and have a device each. Compiled by nvcc.
#include "belay/backend/mpi.hpp"
#include "train_moe/nccl_trainer.cuh"

namespace train_moe {

void run_mpi_over_nccl(prepared_run& prepared) {
  belay::mpi::world control;
  run_over_nccl_beside(control, prepared, [] {});
}

}  // namespace train_moe
