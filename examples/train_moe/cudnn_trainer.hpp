// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over ranks that share a GPU, whose attention is cuDNN's: cudnn_trainer.cu, or cudnn_session.cpp where the
// program is built without cuDNN.
#pragma once

namespace train_moe {

struct prepared_run;

/// Throws belay::input_error where the program was built without cuDNN. Asks no device.
void expect_cudnn();

/// Runs what was planned on every rank of the mesh, in bf16, on device 0. Throws belay::backend_error, and as `run_on`.
void run_cudnn_session(prepared_run& prepared);

}  // namespace train_moe
