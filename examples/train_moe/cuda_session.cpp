// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Of a program that is built without CUDA.
#include "train_moe/cuda_trainer.hpp"

#if !defined(BELAY_TRAIN_MOE_CUDA)

#include "belay/core/error.hpp"

namespace train_moe {

int count_cuda_devices() {
  throw belay::backend_error({"open", 0, 0,
                              "this train_moe was built without CUDA: build it with -DBELAY_TRAIN_MOE_CUDA=ON, as "
                              "examples/run --cuda does",
                              belay::where::current()});
}

void expect_cuda_device() { static_cast<void>(count_cuda_devices()); }

void run_cuda_session(prepared_run&) { expect_cuda_device(); }

}  // namespace train_moe

#endif
