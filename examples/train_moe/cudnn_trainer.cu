// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A session in bf16 whose ranks are threads and share device 0, and whose attention is cuDNN's. Compiled by nvcc.
#include "belay/backend/cuda/cudnn_attention.cuh"
#include "train_moe/cuda_trainer.cuh"
#include "train_moe/cudnn_trainer.hpp"

namespace train_moe {

void expect_cudnn() {}

void run_cudnn_session(prepared_run& prepared) {
  const options& run = prepared.line.run;
  const std::size_t rows = run.micro_batch_size * run.sequence;
  const belay::attention_sizes sizes{run.model.heads, run.model.kv_heads, run.model.head_dim, run.sequence};
  using api_type = belay::cuda::attends_by<belay::cuda::cudnn_attention, belay::cuda::runtime_api>;
  api_type api({sizes, rows}, 0, api_type::scratch_for(rows * run.model.experts_per_token), prepared.line.products);
  nvtx_calls calls;
  const auto body = [&](belay::rank& rank, auto& self) {
    if (!self.rehearsing() && prepared.line.ranges == command_line::call_ranges::nvtx)
      self.engine().watch().tell_calls(calls);
    run_rank_as<belay::bf16>(prepared, rank, self);
  };
  belay::launch(belay::cuda::world(api, belay::host::world(static_cast<int>(run.mesh.ranks()))), body, prepared.plan,
                device_launch_options_of(prepared));
}

}  // namespace train_moe
