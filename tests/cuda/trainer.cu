// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The example trainer over ranks that share a device, by the real runtime: it trains, evaluates and samples, and has
// the losses of the host but for fused multiplications. Without a device it is compiled and linked.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/cuda.cuh"
#include "support/card.hpp"
#include "unit/train_moe/support/small_training.hpp"

namespace {

using namespace small_training;

bool are_close(const std::vector<double>& expected, const std::vector<double>& got, const char* what) {
  double worst = expected.size() == got.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < expected.size() && i < got.size(); ++i)
    worst = std::fmax(worst, std::isfinite(got[i]) ? std::abs(expected[i] - got[i]) : 1e9);
  std::printf("%s: differ by %g\n", what, worst);
  return worst < 1e-2;  // of numbers around 5; AdamW makes steps of what differs in the first
}

template <class T>
bool is_close(const options& run) {
  const int ranks = static_cast<int>(run.mesh.ranks());
  const record expected = trained<T>(run, [&](const auto& body) { belay::launch(belay::host::world(ranks), body); });
  belay::cuda::runtime_api api;
  const record got = trained<T>(
      run, [&](const auto& body) { belay::launch(belay::cuda::world(api, belay::host::world(ranks)), body); });
  std::printf("%s, zero %d\n", run.mesh.text().c_str(), static_cast<int>(run.zero));
  const bool losses = are_close(expected.losses, got.losses, "losses");
  const bool norms = are_close(expected.norms, got.norms, "norms");
  return losses && norms && are_close({expected.evaluated}, {got.evaluated}, "evaluation");
}

}  // namespace

int main() {
  int devices = 0;
  const bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  try {
    belay::cuda::runtime_api api;
    const belay::cuda::device<belay::cuda::runtime_api> gpu(api);
    using belay::zero_stage;
    const bool right = is_close<float>(small_run({}, zero_stage::none)) &&
                       is_close<float>(small_run({.pipeline = 2}, zero_stage::optimizer_state)) &&
                       is_close<float>(small_run({.pipeline = 2, .data = 2}, zero_stage::parameters));
    return right ? 0 : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    return !has_device && problem.about().call == "open" ? test::code_without_card() : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
}
