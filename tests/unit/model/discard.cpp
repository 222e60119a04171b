// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/step.hpp"
#include "model/moe_block.hpp"

TEST_CASE("a layer of experts whose handle is discarded gives its slots back and lets the step commit") {
  using exchange = belay::expert_exchange<float>;
  constexpr std::size_t experts = 4, per_token = 2, hidden = 8, width = 6, rows = 12;
  belay::host::world{2}.run([&](belay::host::rank& rank) {
    belay::tier_meter meter;
    belay::host_engine engine{belay::host_pages{std::size_t{1} << 20}, meter};
    belay::symmetric_heap<belay::group> windows{rank.world(), {.bytes = std::size_t{1} << 16, .meter = &meter}};
    exchange here{rank.world(), windows, {experts, per_token, hidden, 2 * rows * per_token}};
    const auto first = static_cast<std::size_t>(rank.number()) * experts / 2;
    model::moe_block<float, exchange> block{
        "layer", {hidden, width, experts, per_token}, 1e-5, {first, experts / 2}, here};
    std::vector<std::vector<float>> memory;
    block.for_each_parameter([&](auto& parameter) {
      memory.emplace_back(2 * parameter.local_size());
      float* const values = memory.back().data();
      parameter.bind(values, values + parameter.local_size());
      parameter.initialise(1);
    });
    std::vector<float> x(rows * hidden);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
    const belay::view<const float, 3> input{x.data(), {1, rows, hidden}};
    for (int round = 0; round < 3; ++round) {
      belay::step step{engine};
      here.begin_step();
      auto handle = belay::forward(step, block, input);
      CHECK(windows.live_slots() > 0);
      std::move(handle).discard("this branch takes no gradient");
      CHECK(windows.live_slots() == 0);
      static_cast<void>(here.take_overflow());
      auto outcome = std::move(step).commit();
      CHECK(belay::committed(outcome) != nullptr);
    }
  });
}
