// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over the real runtime and NCCL, in fp32: ranks that are threads or processes of this machine have a
// device each. Compiled by nvcc.
#include "train_moe/nccl_trainer.cuh"

namespace train_moe {

template void run_rank_as<float>(prepared_run&, nccl_rank&, nccl_run&);

nccl_support built_with_nccl() { return nccl_support::compiled; }

void run_over_nccl(const belay::host::world& control, prepared_run& prepared, void (*begin)()) {
  launch_over_nccl(control, prepared, begin);
}
void run_over_nccl(const belay::host::processes& control, prepared_run& prepared, void (*begin)()) {
  launch_over_nccl(control, prepared, begin);
}
void run_over_nccl(const belay::host::launched_world& control, prepared_run& prepared, void (*begin)()) {
  launch_over_nccl(control, prepared, begin);
}

}  // namespace train_moe
