// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over the real runtime: the ranks of a world of threads share device 0. Compiled by nvcc.
#include "train_moe/cuda_trainer.hpp"

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "train_moe/host_trainer.hpp"

namespace train_moe {

void expect_cuda_device() {
  belay::cuda::runtime_api api;
  const belay::cuda::device<belay::cuda::runtime_api> gpu(api);
}

void run_cuda_session(prepared_run& prepared) {
  belay::cuda::runtime_api api;
  const belay::host::world control(static_cast<int>(prepared.line.run.mesh.ranks()));
  run_on(belay::cuda::world(api, control), prepared);
}

}  // namespace train_moe
