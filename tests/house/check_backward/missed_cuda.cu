// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cub/device/device_for.cuh>

#include "belay/backend/cuda.hpp"
#include "belay/belay.hpp"
#include "handle.hpp"

__global__ void kernel(float* data) { data[threadIdx.x] = 0; }

int main(int count, char**) {
  auto hidden = forward();
  if (count > 5) kernel<<<1, 32>>>(nullptr);
  if (count > 1) std::move(hidden).backward();
}
