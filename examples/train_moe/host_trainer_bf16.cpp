// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/host_trainer.hpp"

namespace train_moe {

template class trainer<belay::bf16, belay::rank, host_run>;
template void run_rank_as<belay::bf16>(prepared_run&, belay::rank&, host_run&);

}  // namespace train_moe
