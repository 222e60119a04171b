// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/host_trainer.hpp"

namespace train_moe {

template class trainer<float, belay::run, model::freezes_experts>;
template void run_rank_as<float, model::freezes_experts>(prepared_run&, belay::rank&, belay::run&);

void run_rank_frozen_experts(prepared_run& prepared, belay::rank& rank, belay::run& run) {
  run_rank_as<float, model::freezes_experts>(prepared, rank, run);
}

}  // namespace train_moe
