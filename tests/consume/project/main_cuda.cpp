// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A consumer of the CUDA backend that is no source of nvcc: what runs on a device stands elsewhere.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "belay/backend/cuda.hpp"

int main() {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  std::printf("%d devices, %s\n", devices, cudaGetErrorName(found));
  return belay::backend_error({"open", 0, 0, "words", {}}).kind() == belay::error_kind::backend ? 0 : 1;
}
