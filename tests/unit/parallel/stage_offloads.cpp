// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "belay/parallel/pipeline_stage.hpp"
#include "belay/step/offloaded_activations.hpp"
#include "unit/parallel/support/staged_network.hpp"

using namespace staged;

namespace {

auto pipeline_of(const auto& mesh, bool gpipe = false) {
  const auto stages = static_cast<std::size_t>(mesh.shape().pipeline);
  return belay::pipeline{
      mesh, gpipe ? belay::schedule::gpipe(stages, micro_batches) : belay::schedule::one_f_one_b(stages, micro_batches),
      belay::boundary<float>({rows, width})};
}

}  // namespace

TEST_CASE("a stage whose activations are in a lower tier trains the same, on every schedule and stream, as planned") {
  using belay::tier;
  struct peaks {
    std::size_t activations = 0, lower = 0;
  };
  const auto train = [](int stages, bool gpipe, auto rule, tier lower, belay::stream_choice streams, trained& out) {
    const auto make_runner = [=](auto& mesh, network& net, auto& run) {
      using run_type = std::remove_reference_t<decltype(run)>;
      using activations_type = belay::offloaded_activations<typename run_type::engine_type>;
      auto activations = std::make_unique<activations_type>(run, lower);
      auto stage = std::make_unique<belay::pipeline_stage<network, activations_type>>(net, rule, *activations);
      return
          [activations = std::move(activations), stage = std::move(stage), pipeline = pipeline_of(mesh, gpipe)](
              const auto& step, const batch& data) mutable { pipeline.run(step, *stage, data.inputs(), data.loss()); };
    };
    const auto body = training_body(3, out, make_runner);
    const belay::rehearsal_result planned = belay::rehearse(stages, body);
    belay::launch(belay::host::world{stages},
                  [&](auto& rank, auto& run) {
                    body(rank, run);
                    if (run.rehearsing()) return;
                    const auto& plan = planned.plan.ranks()[static_cast<std::size_t>(rank.number())];
                    for (const tier of : {tier::device, tier::host})
                      CHECK(run.meters()[of].peak_bytes() == plan.peak_bytes(of));
                  },
                  {.streams = streams});
    return peaks{planned.memory[0].activations, planned.plan.ranks()[0].peak_bytes(tier::host)};
  };
  trained loop;
  train_by_loop(3, loop);
  const auto try_all = [&](int stages, bool gpipe, auto rule) {
    CAPTURE(stages);
    CAPTURE(gpipe);
    trained resident;
    const peaks before = train(stages, gpipe, rule, tier::device, {}, resident);
    CHECK(resident.values == loop.values);
    for (const belay::stream_choice& streams : {belay::stream_choice{belay::stream_policy::immediate, 0},
                                                {belay::stream_policy::queued, 0},
                                                {belay::stream_policy::adversarial, 0},
                                                {belay::stream_policy::adversarial, 5}}) {
      trained got;
      const peaks after = train(stages, gpipe, rule, tier::host, streams, got);
      CHECK(got.losses == loop.losses);
      CHECK(got.norms == loop.norms);
      CHECK(got.values == loop.values);
      CHECK(after.lower > before.lower);
      if (gpipe) CHECK(after.activations < before.activations);
    }
  };
  for (const int stages : {1, 2, 3})
    for (const bool gpipe : {false, true}) {
      try_all(stages, gpipe, belay::recompute_none{});
      try_all(stages, gpipe, belay::recompute_all{});
      try_all(stages, gpipe, [](std::size_t number) { return number % 2 == 1; });
    }
}
