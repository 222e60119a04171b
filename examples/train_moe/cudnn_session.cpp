// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Of a program that is built without cuDNN.
#include "train_moe/cudnn_trainer.hpp"

#if !defined(BELAY_TRAIN_MOE_CUDNN)

#include "belay/core/error.hpp"

namespace train_moe {

void expect_cudnn() {
  throw belay::input_error(
      "--attention cudnn: this train_moe was built without cuDNN: build it with -DBELAY_TRAIN_MOE_CUDNN=ON beside "
      "-DBELAY_TRAIN_MOE_CUDA=ON, where cuDNN 9 is found, or take --attention own");
}

void run_cudnn_session(prepared_run&) { expect_cudnn(); }

}  // namespace train_moe

#endif
