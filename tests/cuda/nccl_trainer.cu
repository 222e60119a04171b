// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The example trainer over ranks that have a card each, by the real runtime and NCCL: two have the losses of one but
// for the order of sums. Without two cards it is compiled and linked, and what fails is one clear backend_error.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/backend/nccl/runtime_nccl.cuh"
#include "unit/train_moe/support/small_training.hpp"

namespace {

using namespace small_training;

double apart(const std::vector<double>& expected, const std::vector<double>& got) {
  double worst = expected.size() == got.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < expected.size() && i < got.size(); ++i)
    worst = std::fmax(worst, std::isfinite(got[i]) ? std::abs(expected[i] - got[i]) : 1e9);
  return worst;
}

record over_nccl(const belay::axes& mesh, belay::zero_stage zero) {
  belay::cuda::runtime_api api;
  const belay::nccl::runtime_nccl nccl;
  const belay::host::world control(static_cast<int>(mesh.ranks()));
  return trained<float>(small_run(mesh, zero),
                        [&](const auto& body) { belay::launch(belay::nccl::world(api, nccl, control), body); });
}

bool has_losses_of_one(const record& one, const belay::axes& mesh, belay::zero_stage zero) {
  const record got = over_nccl(mesh, zero);
  const double losses = apart(one.losses, got.losses), norms = apart(one.norms, got.norms);
  std::printf("%s, zero %d: losses differ by %g, norms by %g\n", mesh.text().c_str(), static_cast<int>(zero), losses,
              norms);
  return losses < 1e-3 && norms < 1e-3;
}

}  // namespace

int main() {
  int devices = 0;
  const bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  try {
    using belay::zero_stage;
    const record one = over_nccl({}, zero_stage::none);
    if (devices < 2) return 0;
    return has_losses_of_one(one, {.pipeline = 2}, zero_stage::optimizer_state) &&
                   has_losses_of_one(one, {.data = 2}, zero_stage::parameters) &&
                   has_losses_of_one(one, {.expert = 2}, zero_stage::gradients)
               ? 0
               : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    return !has_device && problem.about().call == "count_devices" ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
}
