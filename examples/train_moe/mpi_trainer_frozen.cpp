// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#if defined(BELAY_TRAIN_MOE_MPI)

#include "train_moe/mpi_trainer.hpp"

namespace train_moe {

template void run_rank_as<float, model::freezes_attention>(prepared_run&, belay::mpi::rank&, mpi_run&);
template void run_rank_as<float, model::freezes_experts>(prepared_run&, belay::mpi::rank&, mpi_run&);
template void run_rank_as<float, model::freezes_parts>(prepared_run&, belay::mpi::rank&, mpi_run&);

}  // namespace train_moe

#endif
