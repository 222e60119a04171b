// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What NCCL does among two cards or more: all ranks have the same bits of its own sums, windows are loaded and stored
// by kernels of peers, and a rank comes back where a peer does not come. unit/backend/nccl_calls asks the fakes the
// same. Without two cards it says so.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/backend/nccl/runtime_nccl.cuh"
#include "support/card.hpp"
#include "unit/backend/nccl_trials.hpp"

namespace {

bool told(const char* what, const std::string& wrong) {
  const bool skipped = wrong == nccl_trials::no_reach;
  std::printf("%s: %s%s\n", what, skipped ? "skipped, " : "", wrong.empty() ? "as it should be" : wrong.c_str());
  return wrong.empty() || skipped;
}
bool all_told(belay::cuda::runtime_api& api, const belay::nccl::runtime_nccl& nccl, int ranks) {
  using belay::nccl::world, belay::nccl::sums, nccl_trials::waits_in;
  const belay::host::world control(ranks, {.timeout = std::chrono::seconds(60)}),
      two(2, {.timeout = std::chrono::seconds(60)});
  const bool bits = told("NCCL's own sums",
                         nccl_trials::same_bits(world(api, nccl, control, belay::nccl::adds<sums::any>{}), 2'000'000));
  const bool windows = told("windows", nccl_trials::windows(world(api, nccl, control), 4096, 40));
  const belay::nccl::world_options none;
  const bool call = told("a call of NCCL, aborted", nccl_trials::comes_back(api, nccl, waits_in::call, two, none));
  const bool collective =
      told("a collective, aborted", nccl_trials::comes_back(api, nccl, waits_in::collective, two, none));
  const bool graph =
      told("the launch of a graph, aborted", nccl_trials::comes_back(api, nccl, waits_in::graph, two, none));
  return bits && windows && call && collective && graph;
}

}  // namespace

int main() try {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
    std::printf("skipped: %d devices, and it takes two\n", devices);
    return devices == 0 ? test::code_without_card() : 77;
  }
  belay::cuda::runtime_api api;
  const belay::nccl::runtime_nccl nccl;
  return all_told(api, nccl, std::min(devices, 3)) ? 0 : 1;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
