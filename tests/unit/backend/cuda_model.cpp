// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples over a device of the host: what its layers and the library hand to a kit reads the memory
// of the device only there, and waits for what it needs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/kernel/rows.hpp"
#include "belay/step.hpp"
#include "belay/train/loss.hpp"
#include "model/mixtral.hpp"
#include "unit/backend/fake_cuda.hpp"
#include "unit/model/support/exchange.hpp"

using namespace fake_cuda;
using fakes::work_order;

namespace {

constexpr std::size_t activation_bytes = std::size_t{1} << 19, parameter_bytes = std::size_t{1} << 17;

// The loss and all gradients of one step, with the parameters in `memory`, of which `staged` is the host's side.
template <class Engine, class Memory, class Staged>
std::vector<double> one_step(Engine& engine, const Memory& memory, const Staged& staged) {
  model::mixtral_config config;
  config.vocab = 19;
  config.hidden = 16;
  config.expert_width = 24;
  config.layers = 1;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.experts = 4;
  config.positions = 5;
  using exchange = test::exchange<float>;
  const std::size_t tokens = 2 * config.positions;
  exchange all_here(tokens * config.experts_per_token);
  model::mixtral<float, exchange> net(config, model::model_part::whole(config), {0, config.experts}, all_here);
  // Tokens, targets, then of each parameter its values and its gradient.
  auto* const index = reinterpret_cast<std::int32_t*>(staged.data());
  for (std::size_t i = 0; i < tokens; ++i) {
    index[i] = static_cast<std::int32_t>(i * i % config.vocab);
    index[tokens + i] =
        i % 5 == 4 ? belay::kernel::ignored_target : static_cast<std::int32_t>((i * i + 1) % config.vocab);
  }
  std::size_t floats = 2 * tokens;
  const auto at = [](const auto& region, std::size_t k) { return reinterpret_cast<float*>(region.data()) + k; };
  std::vector<std::pair<std::size_t, std::size_t>> gradients;
  net.for_each_parameter([&](auto& parameter) {
    const std::size_t size = parameter.local_size();
    parameter.bind(at(staged, floats), at(staged, floats + size));
    parameter.initialise(3);
    std::fill_n(at(staged, floats + size), size, 0.0F);
    parameter.bind(at(memory, floats), at(memory, floats + size));
    gradients.emplace_back(floats + size, size);
    floats += 2 * size;
  });
  REQUIRE(floats * sizeof(float) <= parameter_bytes);

  belay::step step{engine};
  engine.copies().copy(memory.data(), staged.data(), floats * sizeof(float));
  engine.copies().let_wait(engine.compute(), engine.copies().record());
  const auto* const on_device = reinterpret_cast<const std::int32_t*>(memory.data());
  const belay::view<const std::int32_t, 2> x{on_device, {2, config.positions}};
  auto embedded = belay::forward(step, net.first(), x);
  auto first = belay::forward(step, net.layers()[0], embedded.out());
  auto logits = belay::forward(step, net.last(), first.out());
  auto loss = belay::cross_entropy(step, belay::view<const float, 3>(logits.out()),
                                   belay::view<const std::int32_t, 2>{on_device + tokens, x.shape()});
  auto grad = std::move(logits).backward(loss.gradient);
  grad = std::move(first).backward(grad);
  std::move(embedded).backward(grad);
  std::vector<double> result;
  const auto outcome = std::move(step).commit([&](const belay::ballot& own) {
    result.push_back(own.loss);
    return own;
  });
  static_cast<void>(outcome);
  belay::queue_copy(engine.compute(), staged.data(), memory.data(), floats * sizeof(float));
  engine.compute().synchronize();
  for (const auto& [from, count] : gradients) result.insert(result.end(), at(staged, from), at(staged, from) + count);
  return result;
}

}  // namespace

TEST_CASE("the model of the examples has the host's bits over a device, in every order") {
  belay::tier_meter host_meter;
  belay::host_engine host(belay::host_pages(activation_bytes), host_meter);
  const belay::host_pages host_memory(parameter_bytes), host_staged(parameter_bytes);
  const std::vector<double> expected = one_step(host, host_memory, host_staged);
  CHECK(expected[0] > 0);
  CHECK(std::count(expected.begin(), expected.end(), 0.0) < static_cast<std::ptrdiff_t>(expected.size() / 2));
  for (const fakes::device_options& how : orders()) {
    api_type api(how);
    {
      const belay::cuda::device<api_type> gpu(api);
      const memory_type memory(gpu, parameter_bytes);
      const host_side staged(gpu, parameter_bytes);
      belay::tier_meter meter;
      belay::engine<memory_type, kit_type> engine(memory_type(gpu, activation_bytes), meter, kit_type(gpu),
                                                  belay::freed_memory::poisoned);
      const memory_type workspace(gpu, engine.kit().workspace_bytes());
      engine.kit().use_workspace({workspace.data(), workspace.size_bytes()});
      CHECK(one_step(engine, memory, staged) == expected);
      CHECK(std::count(api.calls().begin(), api.calls().end(), "histogram") == 1);  // of the one layer's routing
    }
    CHECK(api.empty());
  }
}
