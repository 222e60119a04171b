// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over ranks that have a GPU each, and communicate over NCCL: nccl_trainer.cu, or nccl_session.cpp where
// the program is built without NCCL.
#pragma once

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "train_moe/device_rule.hpp"

namespace train_moe {

struct prepared_run;

/// Of this program. Throws belay::backend_error where it was built without CUDA.
[[nodiscard]] nccl_support built_with_nccl();

/// Runs what was planned on every rank that `control` starts; each calls `begin` first. Throws belay::input_error on
/// all ranks where a machine has fewer GPUs than ranks, belay::backend_error, and as `run_on`.
void run_over_nccl(const belay::host::world& control, prepared_run& prepared, void (*begin)());
void run_over_nccl(const belay::host::processes& control, prepared_run& prepared, void (*begin)());
void run_over_nccl(const belay::host::launched_world& control, prepared_run& prepared, void (*begin)());
/// Trains this process's rank of a world that mpirun has started, in a program that was built with MPI.
void run_mpi_over_nccl(prepared_run& prepared);

}  // namespace train_moe
