// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over the real runtime, in fp32: the ranks of a world of threads share device 0. Compiled by nvcc.
#include "train_moe/cuda_trainer.cuh"

namespace train_moe {

template void run_rank_as<float>(prepared_run&, cuda_rank&, cuda_run&);

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
  belay::cuda::runtime_api api = runtime_for(run);
  const belay::host::world control(static_cast<int>(run.mesh.ranks()));
  const auto body = [&](auto& rank, auto& self) {
    if (run.dtype == belay::dtype::bf16) return run_rank_as<belay::bf16>(prepared, rank, self);
    run_rank_as<float>(prepared, rank, self);
  };
  belay::launch<model::host_kit>(belay::cuda::world(api, control), body, prepared.plan, device_launch_options_of(prepared));
}

}  // namespace train_moe
