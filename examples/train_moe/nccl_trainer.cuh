// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ranks of the trainer on a GPU each, beside those of the host or of MPI. Each type of its parameters is a
// compilation unit.
#pragma once

#include <utility>

#include "belay/backend/nccl.hpp"
#include "belay/backend/nccl/runtime_nccl.cuh"
#include "train_moe/cuda_trainer.cuh"
#include "train_moe/nccl_trainer.hpp"

namespace train_moe {

template <class Control>
using nccl_rank_beside =
    belay::nccl::rank<Control, belay::cuda::runtime_api, belay::nccl::runtime_nccl, belay::nccl::sums::fixed_order>;
template <class Rank>
using nccl_run_of = belay::run<Rank, belay::engine<typename Rank::memory_type, typename Rank::kit_type>>;
using nccl_rank = nccl_rank_beside<belay::host::rank>;
using nccl_run = nccl_run_of<nccl_rank>;

extern template void run_rank_as<float>(prepared_run&, nccl_rank&, nccl_run&);
extern template void run_rank_as<belay::bf16>(prepared_run&, nccl_rank&, nccl_run&);

/// Runs what was planned on every rank of `control`; each calls `begin` first.
template <class Control>
void launch_over_nccl(Control& control, prepared_run& prepared, void (*begin)()) {
  belay::cuda::runtime_api api = runtime_for(prepared.line.run);
  const belay::nccl::runtime_nccl nccl;
  const auto body = [&](auto& rank, auto& self) {
    if (!self.rehearsing()) begin();
    if (prepared.line.run.dtype == belay::dtype::bf16) return run_rank_as<belay::bf16>(prepared, rank, self);
    run_rank_as<float>(prepared, rank, self);
  };
  belay::launch<model::host_kit>(belay::nccl::world(api, nccl, control), body, prepared.plan,
                                 device_launch_options_of(prepared));
}

}  // namespace train_moe
