// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Sessions over NCCL whose ranks are threads or processes of this machine and have a device each. Compiled by nvcc.
#include "train_moe/nccl_trainer.cuh"

namespace train_moe {

nccl_support built_with_nccl() { return nccl_support::compiled; }

void run_over_nccl(const belay::host::world& control, prepared_run& prepared, void (*begin)()) {
  run_over_nccl_beside(control, prepared, begin);
}
void run_over_nccl(const belay::host::processes& control, prepared_run& prepared, void (*begin)()) {
  run_over_nccl_beside(control, prepared, begin);
}
void run_over_nccl(const belay::host::launched_world& control, prepared_run& prepared, void (*begin)()) {
  run_over_nccl_beside(control, prepared, begin);
}

}  // namespace train_moe
