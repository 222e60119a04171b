// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include "train_moe/prepared_run.hpp"

namespace train_moe {

/// Runs this process's rank of a world that mpirun has started. Throws belay::input_error where the program was built
/// without MPI.
void run_mpi_session(prepared_run& prepared);

}  // namespace train_moe
