// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer of ranks that compute on a GPU, whether they share it or have one each: each type of its parameters is a
// compilation unit; frozen parts are not compiled.
#pragma once

#include <span>

#include "belay/cuda.cuh"
#include "train_moe/cuda_trainer.hpp"
#include "train_moe/host_trainer.hpp"
#include "train_moe/nvtx_calls.hpp"

namespace train_moe {

extern template void run_rank_as<float>(prepared_run&, belay::rank&, belay::cuda_run&);
extern template void run_rank_as<belay::bf16>(prepared_run&, belay::rank&, belay::cuda_run&);

/// With room for what a dispatch sorts: a rank's choices of a micro-batch, at most those of all its sequences. Asks no
/// device.
[[nodiscard]] inline belay::cuda::runtime_api runtime_for(const command_line& line) {
  const options& run = line.run;
  return belay::cuda::runtime_api(
      0, belay::cuda::runtime_api::scratch_for(run.micro_batch_size * run.sequence * run.model.experts_per_token),
      line.products);
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

/// Runs what was planned on every rank of `world`; each calls `begin` first.
template <class World>
void run_on_devices(
    World&& world, prepared_run& prepared, void (*begin)() = [] {}) {
  nvtx_calls calls;
  const auto body = [&](belay::rank& rank, auto& self) {
    if (!self.rehearsing()) begin();
    if (!self.rehearsing() && prepared.line.ranges == command_line::call_ranges::nvtx)
      self.engine().watch().tell_calls(calls);
    if (prepared.line.run.dtype == belay::dtype::bf16) return run_rank_as<belay::bf16>(prepared, rank, self);
    run_rank_as<float>(prepared, rank, self);
  };
  belay::launch(world, body, prepared.plan, device_launch_options_of(prepared));
}

}  // namespace train_moe
