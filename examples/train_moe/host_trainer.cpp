// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/host_trainer.hpp"

namespace train_moe {

template class trainer<float, belay::run>;
template void run_rank_as<float>(prepared_run&, belay::rank&, belay::run&);

void run_rank_fp32(prepared_run& prepared, belay::rank& rank, belay::run& run) {
  run_rank_as<float>(prepared, rank, run);
}

}  // namespace train_moe
