// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// N ranks hold the same model, divide a step's micro-batches and sum their gradients. Each keeps a part of the
// optimizer's state (ZeRO-1). The plan comes before the memory. Started directly it has four threads, else the
// launcher's processes:
//   examples/run 04_data_parallel [STEPS]        belay-run -n 4 build/examples/examples/04_data_parallel [STEPS]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "model/cross_entropy.hpp"
#include "model/embedding.hpp"
#include "model/head.hpp"
#include "model/products.hpp"
#include "train_moe/batch.hpp"
#include "train_moe/corpus.hpp"

namespace {
constexpr std::size_t micro_batches = 9, length = 128, hidden = 64, all_targets = micro_batches * (length - 1);
using tokens_view = belay::view<const std::int32_t, 2>;
// Predicts a byte from the one before: the smallest language model.
struct network {
  model::embedding<float> embedding{"embedding", 256, hidden};
  model::head<float> head{"norm", "head", 256, hidden, 1e-5};
};

// One micro-batch forward and backward, in a step or in its rehearsal, which computes nothing; returns its summed loss.
template <class Engine>
double forward_and_backward(belay::micro_batch_scope<Engine> scope, network& net, tokens_view x, tokens_view y) {
  auto embedded = belay::forward(scope, net.embedding, x);
  auto logits = belay::forward(scope, net.head, embedded.out());
  belay::gradient<Engine, float, 3> grad{scope.engine(), logits.out().shape()};
  double loss = 0;
  scope.engine().compute().run([&] { loss = model::cross_entropy(logits.out(), y, 1.0, grad.values()); });
  grad = std::move(logits).backward(grad);
  std::move(embedded).backward(grad);
  return loss;
}

// Bytes of activations: the same code over addresses without memory.
std::size_t planned_activations(network& net) {
  belay::tier_meter meter;
  belay::rehearsal_engine engine{belay::reserved_addresses{std::size_t{1} << 30}, meter};
  belay::step step{engine};
  forward_and_backward(step.micro_batch(0), net, {nullptr, {1, length}}, {nullptr, {1, length}});
  step.cut_off();
  return engine.activations().offsets().extent_bytes();
}

void train(belay::host::rank& rank, std::size_t steps, const train_moe::corpus& text) {
  const std::size_t number = static_cast<std::size_t>(rank.number()), ranks = static_cast<std::size_t>(rank.size());
  const auto mine = belay::even_part(micro_batches, ranks, number);  // another rank may have one more, or none
  network net;
  std::vector<belay::bucket_member<float>> members;
  const auto add = [&](auto& parameter) { members.emplace_back(parameter, 0); };
  net.embedding.for_each_parameter(add), net.head.for_each_parameter(add);
  const belay::bucket_family<belay::host::group> everybody{rank.world(), belay::zero_stage::optimizer_state};
  belay::gradient_buckets<float, belay::host::group> gradients{members, {everybody}, 65536, micro_batches};
  const auto& layout = gradients.layout();  // the plan: parameters, gradients and state + activations; then the memory
  const std::size_t state = belay::adamw_state_elements(layout, {&number, 1}), activations = planned_activations(net);
  const std::size_t floats = layout.elements() + layout.gradient_elements() + state;
  std::printf("rank %zu plans %zu + %zu bytes\n", number, floats * sizeof(float), activations);
  std::vector<float> values(layout.elements()), grads(layout.gradient_elements()), moments(state);
  belay::tier_meter device;
  model::host_engine engine{belay::host_pages{activations}, device};
  gradients.bind(values, grads);
  for (const auto& member : members) member.parameter().initialise(1);  // by name: the same on all ranks
  belay::adamw<float, belay::host::group> optimizer{{.learning_rate = 3e-3}, gradients, moments};
  std::vector<std::int32_t> tokens(length), targets(length);
  const tokens_view x{tokens.data(), {1, length}}, y{targets.data(), {1, length}};
  for (std::size_t s = 1; s <= steps; ++s) {
    belay::step step{engine};
    double loss[1] = {0};
    gradients.begin(mine.count);
    for (std::size_t m = 0; m < mine.count; ++m) {
      text.sequence(1, {s, mine.first + m, 0}, tokens);
      train_moe::next_token_targets(tokens, targets);
      loss[0] += forward_and_backward(step.micro_batch(m), net, x, y);
      gradients.contributed(0, members.size(), m);
    }
    auto reduced = gradients.finish(belay::target_tokens{all_targets});  // of the whole batch, on every rank
    for (const auto& r : reduced.owned()) step.observe({.non_finite = !belay::kernel::are_finite(r.gradient, r.count)});
    auto outcome = std::move(step).commit(belay::world_vote{rank.world()});
    if (auto* ok = belay::committed(outcome)) optimizer.apply(*ok, std::move(reduced), belay::clip_factor::none());
    rank.world().all_reduce(std::span<double>(loss), belay::sum);
    if (number == 0) std::printf("step %zu  loss %.4f\n", s, loss[0] / double{all_targets});
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const auto text = train_moe::corpus::from_repository(BELAY_SOURCE_DIR);
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  const auto body = [&](belay::host::rank& rank) { train(rank, steps, text); };
  const bool by_hand = belay::find_launcher().launcher == std::string("none");
  by_hand ? belay::host::world{4}.run(body) : belay::host::world::from_env().run(body);
} catch (const std::exception& error) {
  std::fprintf(stderr, "04_data_parallel: %s\n", belay::printable_what(error).c_str());
  return 1;
}
