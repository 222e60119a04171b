// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A consumer of the NCCL backend that is no source of nvcc: what runs on a device stands elsewhere.
#include <nccl.h>

#include <cstdio>

#include "belay/backend/nccl.hpp"

int main() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return 1;
  std::printf("NCCL %s\n", belay::nccl::version_text(version).c_str());
  return version >= belay::nccl::least_version ? 0 : 1;
}
