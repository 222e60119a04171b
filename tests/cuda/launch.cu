// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A trainer over ranks that share a device of the real runtime. It has the losses and norms of the host, but for what
// the device's arithmetic fuses, and its own weights to the bit where all lies in lower tiers and where it goes on from
// a checkpoint, that of files of many chunks too, which threads copy beside the kernels. Without a device the launch is
// refused in one clear backend_error.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "unit/train/support/device_trainer.hpp"
#include "unit/train/support/directory.hpp"

namespace {

using device_trainer::result;

bool close(const std::vector<double>& a, const std::vector<double>& b) {
  bool ok = a.size() == device_trainer::steps && a.size() == b.size();
  for (std::size_t i = 0; ok && i < a.size(); ++i) ok = std::abs(a[i] - b[i]) <= 1e-4 * std::abs(b[i]);
  return ok;
}

// Whether it trains there as on the host.
template <int Stage, class T>
bool trains(belay::cuda::runtime_api& api, int ranks) {
  result expected, got;
  belay::launch<belay::host_kit<belay::kernel::blocked_products>>(belay::host::world(ranks),
                                                                  device_trainer::body<Stage, T>(expected));
  belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 1 << 16}),
                device_trainer::body<Stage, T>(got));
  const bool ok = close(got.losses, expected.losses) && close(got.norms, expected.norms);
  std::printf("%d ranks, zero %d: %s\n", ranks, Stage, ok ? "the host's losses" : "not the host's losses");
  return ok;
}

// Whether what it keeps in lower tiers, and a run that stops and goes on, change nothing.
bool streams(belay::cuda::runtime_api& api, belay::tier in) {
  const auto run = [&](const device_trainer::settings& how) {
    result out;
    belay::launch(belay::cuda::world(api, belay::host::world(2), {.slot_bytes = 1 << 16}),
                  device_trainer::trained<float>(out, how));
    return out;
  };
  device_trainer::settings how{.stage = belay::zero_stage::parameters, .hidden = 20'000};
  const result expected = run(how);
  how.optimizer = {.state = in, .folder = "/tmp", .chunk = belay::parameter_chunk};
  how.activations = how.between_steps = how.store.parameters = how.store.gradients = in;
  how.store.files.folder = "/tmp";
  bool ok = run(how).weights == expected.weights;
  const train_bench::directory saved;
  how.checkpoints = saved.path;
  how.steps = 2;
  ok = ok && run(how).losses.size() == 2;
  how.steps = device_trainer::steps;
  const result rest = run(how);
  ok = ok && rest.from == 2 && rest.weights == expected.weights;
  std::printf("all in tier %s: %s\n", name(in), ok ? "the device's weights" : "not the device's weights");
  return ok;
}

// Whether a checkpoint that threads copy chunk by chunk, while the kernels of the next step run, has the weights of its
// step: files of several chunks.
bool saves_beside(belay::cuda::runtime_api& api) {
  const auto run = [&](const device_trainer::settings& how) {
    result out;
    belay::launch(belay::cuda::world(api, belay::host::world(1), {.slot_bytes = 1 << 16}),
                  device_trainer::trained<float>(out, how));
    return out;
  };
  device_trainer::settings how{.hidden = 400'000, .store = {.seed = 3, .bucket_bytes = std::size_t{1} << 22}};
  const result expected = run(how);
  const train_bench::directory saved;
  how.checkpoints = saved.path;
  how.steps = 2;
  static_cast<void>(run(how));
  how.steps = device_trainer::steps;
  const result rest = run(how);
  const bool ok = rest.from == 2 && rest.weights == expected.weights;
  std::printf("checkpoints of many chunks: %s\n", ok ? "the weights of their step" : "other weights");
  return ok;
}

}  // namespace

int main() {
  belay::cuda::runtime_api api;
  int devices = 0;
  const bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  try {
    bool ok = true;
    for (const int ranks : {1, 2, 3}) {
      ok = trains<0, float>(api, ranks) && ok;
      ok = trains<3, float>(api, ranks) && ok;
    }
    for (const belay::tier in : {belay::tier::pinned, belay::tier::host, belay::tier::file})
      ok = streams(api, in) && ok;
    ok = saves_beside(api) && ok;
    return ok && has_device ? 0 : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    return !has_device && problem.about().call == "open" ? 0 : 1;
  }
}
