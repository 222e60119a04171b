// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples over a device of the host: what its layers and the library hand to a kit reads the memory
// of the device only there, and waits for what it needs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
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
        // Of the one layer's routing, and the rows of the embedding's gradient.
        CHECK(std::count(api.calls().begin(), api.calls().end(), "histogram") == 1);
        CHECK(std::count(api.calls().begin(), api.calls().end(), "sort") > 1);
      }
      CHECK(api.empty());
    }
  });
}

namespace {

// Attention is one call of the Api, as it is of a GPU's.
struct attending_api : fakes::device_api {
  using fakes::device_api::device_api;
  template <class Call>
  status_type attention(stream_type on, const Call&) {
    return each(on, 0, belay::kernel::fill<float>{nullptr, 0});
  }
};

struct joining_host_kit : belay::host_kit<> {
  static constexpr bool joins_products = true;
};

}  // namespace

TEST_CASE("in bf16 a device multiplies by the matrices of queries, keys and values at once, and means the same") {
  belay::tier_meter host_meter, meter;
  belay::host_engine host(belay::host_pages(activation_bytes), host_meter);
  const belay::host_pages host_memory(parameter_bytes), host_slots(parameter_bytes), host_staged(parameter_bytes);
  const std::vector<double> expected = one_step<belay::bf16>(host, host_memory, host_slots, host_staged);
  api_type api;
  const belay::cuda::device<api_type> gpu(api);
  const memory_type memory(gpu, parameter_bytes), slots(gpu, parameter_bytes);
  const host_side staged(gpu, parameter_bytes);
  belay::engine<memory_type, kit_type> engine(memory_type(gpu, activation_bytes), meter, kit_type(gpu));
  const std::vector<double> got = one_step<belay::bf16>(engine, memory, slots, staged);
  belay::engine<belay::host_pages, joining_host_kit> joining(belay::host_pages(activation_bytes), host_meter);
  CHECK(got == one_step<belay::bf16>(joining, host_memory, host_slots, host_staged));
  REQUIRE(got.size() == expected.size());
  CHECK(got[0] == expected[0]);  // a column of the forward is one sum in either
  CHECK(got != expected);        // but the gradient of a token is one sum over all columns, and not three
  double worst = 0, largest = 0;
  for (std::size_t i = 1; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  CHECK(worst < 1e-2 * largest);
}

TEST_CASE("a layer in bf16 asks a device for 45 kernels and library calls at most, forward and backward together") {
  using memory = belay::cuda::device_memory<attending_api>;
  attending_api api;
  const belay::cuda::device<attending_api> gpu(api);
  const memory values(gpu, parameter_bytes), slots(gpu, parameter_bytes);
  const belay::cuda::pinned_memory<attending_api> staged(gpu, parameter_bytes);
  belay::tier_meter meter;
  belay::engine<memory, belay::cuda::kit<attending_api>> engine(
      memory(gpu, activation_bytes), meter, belay::cuda::kit<attending_api>(gpu), belay::freed_memory::as_it_was);
  const memory workspace(gpu, engine.kit().workspace_bytes());
  engine.kit().use_workspace({workspace.data(), workspace.size_bytes()});
  one_layer_model::counted_calls<attending_api> calls(api);
  engine.watch().tell_calls(calls);
  static_cast<void>(one_step<belay::bf16>(engine, values, slots, staged));
  // With statistics of experts, and sums over columns in two steps.
  CHECK(calls.launches + calls.library_calls <= 45);
  CHECK(calls.launches == 31);
  CHECK(calls.library_calls == 11);
}
