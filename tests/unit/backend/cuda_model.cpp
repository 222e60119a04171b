// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples over a device of the host: what its layers and the library hand to a kit reads the memory
// of the device only there, and waits for what it needs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "unit/backend/fake_cuda.hpp"
#include "unit/backend/one_layer_model.hpp"

using namespace fake_cuda;
using one_layer_model::activation_bytes, one_layer_model::parameter_bytes, one_layer_model::one_step;

TEST_CASE("the model of the examples has the host's bits over a device, in every order") {
  belay::host::world{1}.run([](belay::host::rank& rank) {
    const belay::host::group alone = rank.world();
    belay::tier_meter host_meter;
    belay::host_engine host(belay::host_pages(activation_bytes), host_meter);
    const belay::host_pages host_memory(parameter_bytes), host_slots(parameter_bytes), host_staged(parameter_bytes);
    const std::vector<double> expected = one_step<float>(host, host_memory, host_slots, host_staged);
    CHECK(expected[0] > 0);
    CHECK(std::count(expected.begin(), expected.end(), 0.0) < static_cast<std::ptrdiff_t>(expected.size() / 2));
    for (const fakes::device_options& how : orders()) {
      api_type api(how);
      {
        const belay::cuda::device<api_type> gpu(api);
        const memory_type memory(gpu, parameter_bytes), slots(gpu, parameter_bytes);
        const host_side staged(gpu, parameter_bytes);
        belay::tier_meter meter;
        belay::engine<memory_type, kit_type> engine(memory_type(gpu, activation_bytes), meter, kit_type(gpu),
                                                    belay::freed_memory::poisoned);
        const memory_type workspace(gpu, engine.kit().workspace_bytes());
        engine.kit().use_workspace({workspace.data(), workspace.size_bytes()});
        CHECK(one_step<float>(engine, memory, slots, staged) == expected);
        for (const char* call : {"histogram", "scan", "sort"})  // of the one layer's routing
          CHECK(std::count(api.calls().begin(), api.calls().end(), call) == 1);
      }
      CHECK(api.empty());
    }
  });
}
