// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/nccl_mpi_trainer.cuh"

namespace train_moe {

template void run_rank_as<float>(prepared_run&, nccl_mpi_rank&, nccl_mpi_run&);

void run_mpi_over_nccl(prepared_run& prepared) {
  belay::mpi::world control;
  launch_over_nccl(control, prepared, [] {});
}

}  // namespace train_moe
