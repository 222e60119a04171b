// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ranks of the trainer on a GPU each, beside those of MPI.
#pragma once

#include "belay/backend/mpi.hpp"
#include "train_moe/nccl_trainer.cuh"

namespace train_moe {

using nccl_mpi_rank = nccl_rank_beside<belay::mpi::rank>;
using nccl_mpi_run = nccl_run_of<nccl_mpi_rank>;

extern template void run_rank_as<float>(prepared_run&, nccl_mpi_rank&, nccl_mpi_run&);
extern template void run_rank_as<belay::bf16>(prepared_run&, nccl_mpi_rank&, nccl_mpi_run&);

}  // namespace train_moe
