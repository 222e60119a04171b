// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A Mixtral in stages, with experts on two ranks of each.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "model/cross_entropy.hpp"
#include "model/mixtral.hpp"

namespace {

constexpr std::size_t sequences = 2, length = 8, micro_batches = 3, steps = 3;

struct trained {
  std::vector<double> losses, norms;
  std::vector<double> held_out;  // before each step
  std::size_t tries = 0;         // of steps
  bool operator==(const trained& other) const { return losses == other.losses && norms == other.norms; }
};

/// Trains on `stages` stages of `experts` ranks, all of which see the same sequences of the global batch.
trained train(int stages, int experts, std::size_t capacity, auto rule, const char* schedule = "1f1b") {
  trained out;
  belay::launch(belay::host::world{stages * experts}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.pipeline = stages, .expert = experts}};
    model::mixtral_config config;
    config.layers = 2;
    config.hidden = 16;
    config.expert_width = 24;
    config.heads = config.kv_heads = 2;
    config.head_dim = 8;
    config.experts = 4;
    config.positions = length;
    config.vocab = 32;
    belay::expert_exchange exchange{
        run, mesh.expert(), {config.experts, config.experts_per_token, config.hidden, capacity}};
    model::mixtral<float, decltype(exchange)> net{
        config,
        model::model_part::of(config, static_cast<std::size_t>(mesh.coordinate().pipeline),
                              static_cast<std::size_t>(stages)),
        {exchange.first_local_expert(), exchange.local_experts()},
        exchange};
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    belay::pipeline pipeline{mesh,
                             belay::schedule::named_table(schedule, static_cast<std::size_t>(stages), micro_batches),
                             belay::boundary<float>({sequences, length, config.hidden})};
    belay::pipeline_stage stage{net, rule};

    std::vector<std::int32_t> tokens(micro_batches * sequences * length), targets(tokens.size(), model::ignored);
    const belay::view<const std::int32_t, 3> inputs{tokens.data(), {micro_batches, sequences, length}};
    const belay::view<const std::int32_t, 3> wanted{targets.data(), inputs.shape()};
    for (auto number : run.steps(steps)) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = static_cast<std::int32_t>((number * 7 + i / length * 5 + i % length * (1 + i / length % 3)) % 32);
        if (i % length > 0) targets[i - 1] = tokens[i];
      }
      if (!run.rehearsing() && rank.number() == 0) ++out.tries;
      const auto held_out = belay::evaluate(run, mesh, [&] {
        belay::forward_only pass{run.engine(), exchange};
        pipeline.observe(pass, stage, inputs[0], [&](auto logits) { belay::cross_entropy(pass, logits, wanted[0]); });
      });
      run.report(held_out, [&](double mean) { out.held_out.push_back(mean); });
      belay::step step{run.engine(), store, exchange};
      pipeline.run(step, stage, inputs, [&](const auto& scope, auto logits) {
        return belay::cross_entropy(scope, logits, wanted[scope.micro_batch()]);
      });
      auto outcome = std::move(step).commit(
          mesh, belay::target_tokens{static_cast<std::size_t>(experts) * micro_batches * sequences * (length - 1)});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](const belay::step_summary& end) {
          out.losses.push_back(end.mean_loss());
          out.norms.push_back(end.norm);
        });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
      }
    }
  });
  return out;
}

}  // namespace

TEST_CASE("a Mixtral in stages has the bits of one that is whole, with experts on one rank or two, and recomputed") {
  for (const int experts : {1, 2}) {
    CAPTURE(experts);
    const trained whole = train(1, experts, 200, belay::recompute_none{});
    REQUIRE(whole.losses.size() == steps);
    CHECK(whole.tries == steps);
    CHECK(whole.losses[2] < whole.losses[0]);
    CHECK(train(2, experts, 200, belay::recompute_none{}) == whole);
    const trained lean = train(2, experts, 200, belay::recompute_all{});
    CHECK(lean == whole);
    CHECK(lean.held_out == whole.held_out);
    CHECK(train(1, experts, 200, [](std::size_t layer) { return layer == 1; }) == whole);
  }
}

TEST_CASE("a Mixtral whose weights' gradients come later has the bits of one whose backwards are whole") {
  for (const int experts : {1, 2}) {
    CAPTURE(experts);
    const trained whole = train(1, experts, 200, belay::recompute_none{});
    CHECK(train(1, experts, 200, belay::recompute_none{}, "zb-h1") == whole);
    CHECK(train(2, experts, 200, belay::recompute_none{}, "zb-h1") == whole);
    CHECK(train(
              2, experts, 200, [](std::size_t layer) { return layer == 1; }, "zb-h2") == whole);
  }
}

TEST_CASE("where experts overflow in an evaluation or in a stage, the results are those of enough room") {
  const trained enough = train(2, 2, 200, belay::recompute_none{});
  const trained grown = train(2, 2, 5, belay::recompute_all{});
  CHECK(grown == enough);
  CHECK(grown.held_out.back() == enough.held_out.back());
}
