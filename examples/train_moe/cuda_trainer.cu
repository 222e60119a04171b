// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over the real runtime, in fp32, and a session whose ranks are threads and share device 0. Compiled by
// nvcc.
#include "train_moe/cuda_trainer.cuh"

namespace train_moe {

template void run_rank_as<float>(prepared_run&, belay::rank&, belay::cuda_run&);

int count_cuda_devices() {
  belay::cuda::runtime_api api;
  return belay::cuda::device_count(api);
}

void expect_cuda_device() {
  belay::cuda::runtime_api api;
  const belay::cuda::device<belay::cuda::runtime_api> gpu(api);
}

void run_cuda_session(prepared_run& prepared) {
  const options& run = prepared.line.run;
  belay::cuda::runtime_api api = runtime_for(prepared.line);
  run_on_devices(belay::cuda::world(api, belay::host::world(static_cast<int>(run.mesh.ranks()))), prepared);
}

}  // namespace train_moe
