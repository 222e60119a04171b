// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over ranks that share a GPU: cuda_trainer.cu, or cuda_session.cpp where the program is built without
// CUDA.
#pragma once

namespace train_moe {

struct prepared_run;

/// How many GPUs this process sees. Throws belay::backend_error where the program was built without CUDA, or there is
/// no device or no driver.
[[nodiscard]] int count_cuda_devices();
/// Opens device 0. Throws as `count_cuda_devices`.
void expect_cuda_device();

/// Runs what was planned on every rank of the mesh, on device 0. Throws belay::backend_error, and as `run_on`.
void run_cuda_session(prepared_run& prepared);

}  // namespace train_moe
