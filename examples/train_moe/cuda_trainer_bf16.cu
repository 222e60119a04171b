// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/cuda_trainer.cuh"

namespace train_moe {

template void run_rank_as<belay::bf16>(prepared_run&, belay::rank&, belay::cuda_run&);

}  // namespace train_moe
