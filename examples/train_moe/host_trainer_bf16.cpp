// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/host_trainer.hpp"

namespace train_moe {

template class trainer<belay::bf16, belay::host::rank, host_run>;
template class trainer<belay::bf16, belay::rehearsal::rank, rehearsal_run>;
template void run_rank_as<belay::bf16>(prepared_run&, belay::host::rank&, host_run&);
template void run_rank_as<belay::bf16>(prepared_run&, belay::rehearsal::rank&, rehearsal_run&);

}  // namespace train_moe
