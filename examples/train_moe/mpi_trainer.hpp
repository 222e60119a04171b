// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over ranks of MPI, for the sources that are compiled with it.
#pragma once

#include "belay/backend/mpi.hpp"
#include "train_moe/host_trainer.hpp"

namespace train_moe {

using mpi_run = belay::run<belay::mpi::rank, belay::engine<belay::host_pages, model::host_kit>>;

extern template void run_rank_as<float, model::freezes_attention>(prepared_run&, belay::mpi::rank&, mpi_run&);
extern template void run_rank_as<float, model::freezes_experts>(prepared_run&, belay::mpi::rank&, mpi_run&);
extern template void run_rank_as<float, model::freezes_parts>(prepared_run&, belay::mpi::rank&, mpi_run&);

}  // namespace train_moe
