// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ranks of the trainer on a GPU. Each type of its parameters is a compilation unit; frozen parts are not compiled.
#pragma once

#include <span>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "train_moe/cuda_trainer.hpp"
#include "train_moe/host_trainer.hpp"

namespace train_moe {

using cuda_rank = belay::cuda::rank<belay::cuda::runtime_api, belay::host::rank>;
using cuda_run = belay::run<cuda_rank, belay::engine<cuda_rank::memory_type, cuda_rank::kit_type>>;

extern template void run_rank_as<float>(prepared_run&, cuda_rank&, cuda_run&);
extern template void run_rank_as<belay::bf16>(prepared_run&, cuda_rank&, cuda_run&);

/// With room for what a dispatch sorts: a rank's choices of a micro-batch, at most those of all its sequences. Asks no
/// device.
[[nodiscard]] inline belay::cuda::runtime_api runtime_for(const options& run) {
  return belay::cuda::runtime_api(
      0, belay::cuda::runtime_api::scratch_for(run.micro_batch_size * run.sequence * run.model.experts_per_token));
}

/// Those of the flags; a plan that is printed is followed by what libraries have taken of each rank's device.
[[nodiscard]] inline belay::launch_options device_launch_options_of(prepared_run& prepared) {
  belay::launch_options out = launch_options_of(prepared.line.run);
  if (prepared.line.print_plan == command_line::plan_output::print)
    out.measured = [&prepared](std::span<const belay::device_usage> usage) {
      prepared.printer.say(belay::device_usage_text(usage));
    };
  return out;
}

}  // namespace train_moe
