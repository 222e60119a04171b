// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two ranks share eight experts: every token is sent to the rank that holds its experts and comes back, forward and
// backward, through symmetric memory. The layers are those of 01_plain; new are the expert axis of the mesh, and the
// exchange among the participants of the step.
//
//   rank 0: tokens -> embedding -> attention -> experts 0-3 -> head
//                                             X  (rows cross)
//   rank 1: tokens -> embedding -> attention -> experts 4-7 -> head      examples/run 02_experts [STEPS]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "model/cross_entropy.hpp"
#include "model/mixtral.hpp"
#include "model/products.hpp"

namespace {
constexpr std::size_t sequences = 4, length = 32;
using tokens_view = belay::view<const std::int32_t, 2>;

// The decoder layer's handle owes a backward, which is a collective too: both ranks must run it.
void forward_and_backward(const auto& step, auto& net, tokens_view tokens, tokens_view targets) {
  auto embedded = belay::forward(step, net.first(), tokens);
  auto mixed = belay::forward(step, net.layers()[0], embedded.out());
  auto logits = belay::forward(step, net.last(), mixed.out());
  auto [loss, top] = belay::cross_entropy(step, logits.out(), targets);
  auto grad = std::move(logits).backward(top);
  grad = std::move(mixed).backward(grad);
  std::move(embedded).backward(grad);
}

void train(belay::rank& rank, belay::run& run, std::size_t steps) {
  belay::mesh mesh{rank, {.expert = rank.size()}};
  model::mixtral_config config;
  config.layers = 1;
  config.hidden = 64;
  config.expert_width = 96;
  config.head_dim = 16;
  config.positions = length;

  // Room for half of the most rows that can arrive. A step in which more do comes again, with room.
  const std::size_t capacity = sequences * length * config.experts_per_token;
  belay::expert_exchange experts{
      run, mesh.expert(), {config.experts, config.experts_per_token, config.hidden, capacity}};
  model::mixtral<float, decltype(experts)> net{
      config, model::model_part::whole(config), {experts.first_local_expert(), experts.local_experts()}, experts};
  belay::parameter_store store{run, mesh, net, belay::zero<0>{}};  // dense parameters replicated, experts divided
  belay::adamw optimizer{store};

  std::vector<std::int32_t> tokens(sequences * length), targets(tokens.size(), model::ignored);
  for (auto number : run.steps(steps)) {
    // Counts upwards by a stride that the model must learn.
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::size_t s = i / length + sequences * static_cast<std::size_t>(rank.number());
      tokens[i] = static_cast<std::int32_t>((number * 17 + s * 31 + (i % length) * (1 + s % 3)) % 256);
      if (i % length > 0) targets[i - 1] = tokens[i];
    }
    belay::step step{run.engine(), store, experts};
    forward_and_backward(step, net, {tokens.data(), {sequences, length}}, {targets.data(), {sequences, length}});
    auto outcome = std::move(step).commit(mesh, belay::target_tokens{2 * sequences * (length - 1)});
    if (auto* ok = belay::committed(outcome)) {
      run.report(*ok, [&](double mean) {
        if (number % 20 == 0 || number == 1)
          std::printf("step %zu  loss %.4f  room for %zu rows a rank\n", number, mean, experts.shape().capacity);
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 3e-3});
    }
  }
}
}  // namespace

int main(int argc, char** argv) try {
  model::one_thread_per_product();
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100;
  if (steps == 0) return std::fprintf(stderr, "02_experts [STEPS]: at least one step\n"), 2;
  belay::launch(belay::host::world{2}, [&](belay::rank& rank, belay::run& run) { train(rank, run, steps); },
                {.products = model::products(), .explain_faults = belay::fault_explanation::by_handler});
} catch (const std::exception& error) {
  std::fprintf(stderr, "02_experts: %s\n", belay::printable_what(error).c_str());
  return 1;
}
