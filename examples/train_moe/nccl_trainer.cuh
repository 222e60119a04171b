// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over ranks that have a GPU each and communicate over NCCL, beside those of the host or of MPI.
#pragma once

#include "belay/nccl.cuh"
#include "train_moe/cuda_trainer.cuh"
#include "train_moe/nccl_trainer.hpp"

namespace train_moe {

/// Runs what was planned on every rank of `control`; each calls `begin` first.
template <class Control>
void run_over_nccl_beside(Control& control, prepared_run& prepared, void (*begin)()) {
  belay::cuda::runtime_api api = runtime_for(prepared.line);
  const belay::nccl::runtime_nccl nccl;
  run_on_devices(belay::nccl::world(api, nccl, control), prepared, begin);
}

}  // namespace train_moe
