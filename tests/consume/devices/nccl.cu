// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cstdio>

#include "belay/backend/nccl.hpp"
#include "belay/backend/nccl/runtime_nccl.cuh"
#include "sorted.cuh"

int main() {
  belay::nccl::runtime_nccl nccl;
  const belay::nccl::library lib(nccl);
  std::printf("NCCL %s\n", belay::nccl::version_text(lib.expect_version()).c_str());
  return user::run();
}
