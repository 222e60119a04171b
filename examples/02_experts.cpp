// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two ranks share eight experts: every token is sent to the rank that holds its experts and comes back, forward and
// backward, through symmetric memory. The layers are those of 01_plain; new are the exchange that they use, and the sum
// of dense gradients over the ranks.
//
//   rank 0: tokens -> embedding -> attention -> experts 0-3 -> head
//                                             X  (rows cross)
//   rank 1: tokens -> embedding -> attention -> experts 4-7 -> head      examples/run 02_experts [STEPS]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/step.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/optimizer.hpp"
#include "model/cross_entropy.hpp"
#include "model/mixtral.hpp"

namespace {
constexpr std::size_t sequences = 4, length = 32;
using group = belay::host::group;
using exchange = belay::expert_exchange<float, group>;
using mixtral = model::mixtral<float, exchange>;
using tokens_view = belay::view<const std::int32_t, 2>;

// The decoder layer's handle owes a backward, which is a collective too: both ranks must run it.
double forward_and_backward(const belay::step<model::host_engine>& step, mixtral& net, tokens_view tokens,
                            tokens_view targets) {
  auto embedded = belay::forward(step, net.first(), tokens);
  auto mixed = belay::forward(step, net.layers()[0], embedded.out());
  auto logits = belay::forward(step, net.last(), mixed.out());

  belay::gradient<model::host_engine, float, 3> grad{step.engine(), logits.out().shape()};
  const double loss = model::cross_entropy<float>(logits.out(), targets, 1.0, grad.values());
  grad = std::move(logits).backward(grad);
  grad = std::move(mixed).backward(grad);
  std::move(embedded).backward(grad);
  return loss;
}

void train(belay::host::rank& rank, std::size_t steps) {
  belay::mesh mesh{rank, belay::axes{.expert = rank.size()}};
  model::mixtral_config config;
  config.layers = 1;
  config.hidden = 64;
  config.expert_width = 96;
  config.head_dim = 16;
  config.positions = length;

  // Room for the most rows that can arrive: all tokens of both ranks, each for two experts of this rank.
  const std::size_t capacity = 2 * sequences * length * config.experts_per_token;
  belay::tier_meter device;
  model::host_engine engine{belay::host_pages{std::size_t{32} << 20}, device};
  belay::symmetric_heap<group> windows{mesh.expert(), {.bytes = std::size_t{8} << 20, .meter = &device}};
  exchange experts{mesh.expert(), windows, {config.experts, config.experts_per_token, config.hidden, capacity}};
  mixtral net{
      config, model::model_part::whole(config), {experts.first_local_expert(), experts.local_experts()}, experts};

  // Dense parameters are replicated over both ranks, experts are not: two families of buckets.
  std::vector<belay::bucket_member<float>> members;
  belay::norm_table table;  // of the whole model: experts have one part for each rank
  std::vector<belay::norm_place> places;
  net.for_each_parameter([&](auto& parameter) {
    const bool stacked = belay::sharded_over<belay::axis::expert>(parameter);
    members.emplace_back(parameter, stacked ? 1 : 0);
    const std::vector<std::size_t> parts(stacked ? 2 : 1, parameter.local_size());
    places.push_back({table.add(parts), stacked ? static_cast<std::size_t>(mesh.expert().rank()) : 0});
  });
  belay::gradient_buckets<float, group> gradients{members, {{mesh.replicas()}, {mesh.data()}}, std::size_t{1} << 18, 1};
  std::vector<float> values(gradients.layout().elements()), grads(gradients.layout().gradient_elements());
  gradients.bind(values, grads);
  net.for_each_parameter([](auto& parameter) { parameter.initialise(1); });
  std::vector<float> moments(belay::adamw<float, group>::state_elements(gradients));
  belay::adamw<float, group> optimizer{{.learning_rate = 3e-3}, gradients, moments};
  std::vector<double> squares(table.entries());
  belay::gradient_norm<float> norm_of{table, places, squares};

  std::vector<std::int32_t> tokens(sequences * length), targets(tokens.size(), model::ignored);
  for (std::size_t number = 1; number <= steps; ++number) {
    // Counts upwards by a stride that the model must learn.
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::size_t s = i / length + sequences * static_cast<std::size_t>(rank.number());
      tokens[i] = static_cast<std::int32_t>((number * 17 + s * 31 + (i % length) * (1 + s % 3)) % 256);
      if (i % length > 0) targets[i - 1] = tokens[i];
    }
    belay::step step{engine};
    experts.begin_step();
    gradients.begin(1);
    double loss[1] = {
        forward_and_backward(step, net, {tokens.data(), {sequences, length}}, {targets.data(), {sequences, length}})};
    gradients.contributed(0, members.size(), 0);
    const std::size_t all_targets = 2 * sequences * (length - 1);
    auto reduced = gradients.finish(belay::target_tokens{all_targets});
    const auto norm = norm_of(reduced, mesh.control());
    const auto overflow = experts.take_overflow();
    step.observe({.non_finite = norm.finite() ? 0U : 1U, .needed_rows = overflow.rows_wanted()});
    auto outcome = std::move(step).commit(belay::world_vote{mesh.control()});
    if (auto* ok = belay::committed(outcome)) optimizer.apply(*ok, std::move(reduced), belay::clip_factor::none());
    mesh.control().all_reduce(std::span<double>(loss), belay::sum);
    if (rank.number() == 0 && (number % 20 == 0 || number == 1)) {
      std::printf("step %zu  loss %.4f  most rows a rank received %zu of %zu\n", number,
                  loss[0] / static_cast<double>(all_targets), overflow.needed, overflow.capacity);
    }
  }
}
}  // namespace

int main(int argc, char** argv) try {
  model::one_thread_per_product();
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100;
  belay::host::world{2}.run([&](belay::host::rank& rank) { train(rank, steps); });
} catch (const std::exception& error) {
  std::fprintf(stderr, "02_experts: %s\n", belay::printable_what(error).c_str());
  return 1;
}
