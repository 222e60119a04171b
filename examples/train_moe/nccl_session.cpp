// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Of a program that is built without NCCL: no run is placed on GPUs of its ranks' own.
#include "train_moe/nccl_trainer.hpp"

#if !defined(BELAY_TRAIN_MOE_NCCL)

#include "train_moe/cuda_trainer.hpp"

namespace train_moe {

nccl_support built_with_nccl() {
#if !defined(BELAY_TRAIN_MOE_CUDA)
  expect_cuda_device();
#endif
  return nccl_support::absent;
}

void run_over_nccl(const belay::host::world&, prepared_run&, void (*)()) {}
void run_over_nccl(const belay::host::processes&, prepared_run&, void (*)()) {}
void run_over_nccl(const belay::host::launched_world&, prepared_run&, void (*)()) {}

}  // namespace train_moe

#endif
