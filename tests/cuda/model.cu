// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples over the real runtime: one step on a device, with its attention, routing, products of
// experts and losses, has the host's loss and gradients. Without a device it is compiled and linked.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "belay/cuda.cuh"
#include "support/card.hpp"
#include "unit/backend/one_layer_model.hpp"

namespace {

using api_type = belay::cuda::runtime_api;
using memory_type = belay::cuda::device_memory<api_type>;
using kit_type = belay::cuda::kit<api_type>;
using one_layer_model::activation_bytes, one_layer_model::parameter_bytes, one_layer_model::one_step;

template <class T>
bool is_close(const belay::cuda::device<api_type>& gpu, double limit) {
  belay::tier_meter host_meter, meter;
  belay::host_engine host(belay::host_pages(activation_bytes), host_meter);
  const belay::host_pages host_memory(parameter_bytes), host_slots(parameter_bytes), host_staged(parameter_bytes);
  const std::vector<double> expected = one_step<T>(host, host_memory, host_slots, host_staged);
  const memory_type memory(gpu, parameter_bytes), slots(gpu, parameter_bytes);
  const belay::cuda::pinned_memory<api_type> staged(gpu, parameter_bytes);
  belay::engine<memory_type, kit_type> engine(memory_type(gpu, activation_bytes), meter, kit_type(gpu));
  const memory_type workspace(gpu, engine.kit().workspace_bytes());
  engine.kit().use_workspace({workspace.data(), workspace.size_bytes()});
  const std::vector<double> got = one_step<T>(engine, memory, slots, staged);
  double worst = 0, largest = 0;
  for (std::size_t i = 1; i < expected.size(); ++i) {
    worst = std::fmax(worst, std::isfinite(got[i]) ? std::abs(expected[i] - got[i]) : 1e9);
    largest = std::fmax(largest, std::abs(expected[i]));
  }
  std::printf("elements of %zu bytes: losses %.6f and %.6f, gradients up to %g differ by %g\n", sizeof(T), expected[0],
              got[0], largest, worst);
  return std::abs(expected[0] - got[0]) <= limit * expected[0] && worst <= limit * largest;
}

}  // namespace

int main() {
  api_type api;
  try {
    const belay::cuda::device<api_type> gpu(api);
    return is_close<float>(gpu, 1e-3) && is_close<belay::bf16>(gpu, 5e-2) ? 0 : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("no device: compiled and linked (%s)\n", problem.what());
    return problem.about().call == "open" ? test::code_without_card() : 1;
  }
}
