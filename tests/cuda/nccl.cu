// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The NCCL backend over the real library. Without a device a communicator is refused in one clear backend_error.
#include <cstdio>
#include <span>
#include <string>
#include <utility>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/backend/nccl/runtime_nccl.cuh"
#include "belay/comm.hpp"

namespace {

using api_type = belay::nccl::runtime_nccl;

using ordered = belay::nccl::rank<belay::host::rank, belay::cuda::runtime_api, api_type, belay::nccl::sums::fixed_order>;

// What a rank of several does, for the compiler: two ranks need two devices.
[[maybe_unused]] void train(belay::host::rank& control, const belay::cuda::device<belay::cuda::runtime_api>& gpu,
                            api_type& nccl, std::span<float> gradients) {
  ordered rank(control, gpu, nccl);
  belay::mesh<ordered> mesh(rank, {.data = rank.size()});
  belay::cuda::stream<belay::cuda::runtime_api> compute(gpu);
  belay::pending sum = mesh.data().start_all_reduce(gradients, belay::sum, belay::after(compute.record()));
  std::move(sum).then(compute);
  mesh.data().reduce(gradients, belay::average, 0);
  compute.synchronize();
  {
    auto window = rank.make_window(mesh.data(), 1 << 20);
    std::printf("%zu, %d ranks\n", window.take(1 << 10), window.reach());
  }
  rank.finish();
}

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
