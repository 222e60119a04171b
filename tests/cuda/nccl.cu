// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The NCCL backend over the real library. Without a device a communicator is refused in one clear backend_error.
#include <cstdio>
#include <string>

#include "belay/backend/nccl.hpp"
#include "belay/backend/nccl/runtime_nccl.cuh"

namespace {

using api_type = belay::nccl::runtime_nccl;

int alone(const belay::nccl::library<api_type>& lib) {
  belay::nccl::unique_id id{};
  api_type::communicator_type made = nullptr;
  lib.expect(lib.api().make_id(id), "make_id", 0, belay::where::current());
  lib.expect(lib.api().init(made, 1, id, 0, belay::nccl::calls::blocking), "init", 0, belay::where::current());
  lib.expect(lib.api().destroy(made), "destroy", 0, belay::where::current());
  return 0;
}

}  // namespace

int main() {
  api_type nccl;
  const belay::nccl::library lib(nccl, 3);
  std::printf("NCCL %s\n", belay::nccl::version_text(lib.expect_version()).c_str());
  int devices = 0;
  const bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  try {
    return alone(lib);
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    const std::string what = problem.what();
    return !has_device && problem.about().call == "init" && problem.about().rank == 3 &&
                   what.find("rank 3: init: ncclCommInitRankConfig: ") != std::string::npos
               ? 0
               : 1;
  }
}
