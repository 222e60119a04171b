// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A trainer over ranks that share a device of the real runtime. It has the losses and norms of the host, but for what
// the device's arithmetic fuses, and its own weights, but for the order in which products at other addresses add, where
// all lies in lower tiers and where it goes on from a checkpoint, that of files of many chunks too, which threads copy
// beside the kernels. Without a device the launch is refused in one clear backend_error.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "support/alike.hpp"
#include "support/card.hpp"
#include "unit/train/support/device_trainer.hpp"
#include "unit/train/support/directory.hpp"

namespace {

using device_trainer::result;

// Of weights. One that was read a step too early is further off.
constexpr double arithmetic = 1e-4;

// The first step has seen no update: from then on AdamW makes steps of what differs.
bool close(const char* what, const std::vector<double>& expected, const std::vector<double>& got) {
  if (expected.size() != device_trainer::steps || got.size() != expected.size()) return false;
  const bool first = std::abs(expected[0] - got[0]) <= 1e-4 * std::abs(expected[0]);
  if (!first) std::printf("%s of the first step: %.9g, not %.9g\n", what, got[0], expected[0]);
  return test::alike(what, expected, got, 2e-2) && first;
}

// Whether it trains there as on the host.
template <int Stage, class T>
bool trains(belay::cuda::runtime_api& api, int ranks) {
  result expected, got;
  belay::launch<belay::host_kit<>>(belay::host::world(ranks),
                                                                  device_trainer::body<Stage, T>(expected));
  belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 1 << 16}),
                device_trainer::body<Stage, T>(got));
  const bool losses = close("losses", expected.losses, got.losses), norms = close("norms", expected.norms, got.norms);
  const bool ok = losses && norms;
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
  bool ok = test::alike("weights", expected.weights, run(how).weights, arithmetic);
  const train_bench::directory saved;
  how.checkpoints = saved.path;
  how.steps = 2;
  ok = ok && run(how).losses.size() == 2;
  how.steps = device_trainer::steps;
  const result rest = run(how);
  ok = test::alike("weights of one that goes on", expected.weights, rest.weights, arithmetic) && rest.from == 2 && ok;
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
  const bool ok = test::alike("weights", expected.weights, rest.weights, arithmetic) && rest.from == 2;
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
    return !has_device && problem.about().call == "open" ? test::code_without_card() : 1;
  }
}
