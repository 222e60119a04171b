// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank, an ordinary loop: the layers of train_moe, every forward and every backward spelled out. Delete one of
// the backward lines and build again: the compiler names the handle whose backward is missing.
//   tokens -> embedding -> 4 decoder layers -> head -> loss      examples/run 01_plain [STEPS] [FILE]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/step.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/optimizer.hpp"
#include "model/cross_entropy.hpp"
#include "model/mixtral.hpp"
#include "train_moe/batch.hpp"
#include "train_moe/corpus.hpp"

namespace {
constexpr std::size_t micro_batches = 8, sequences = 4, length = 128;
using group = belay::host::group;
using exchange = belay::expert_exchange<float, group>;
using mixtral = model::mixtral<float, exchange>;
using tokens_view = belay::view<const std::int32_t, 2>;
using scope_type = belay::micro_batch_scope<model::host_engine>;

// One micro-batch forward and backward; returns its summed loss. Handles are in the order of the model.
double forward_and_backward(const scope_type& scope, mixtral& net, tokens_view tokens, tokens_view targets) {
  auto x0 = belay::forward(scope, net.first(), tokens);
  auto x1 = belay::forward(scope, net.layers()[0], x0.out());
  auto x2 = belay::forward(scope, net.layers()[1], x1.out());
  auto x3 = belay::forward(scope, net.layers()[2], x2.out());
  auto x4 = belay::forward(scope, net.layers()[3], x3.out());
  auto logits = belay::forward(scope, net.last(), x4.out());

  belay::gradient<model::host_engine, float, 3> grad{scope.engine(), logits.out().shape()};
  const double loss = model::cross_entropy<float>(logits.out(), targets, 1.0, grad.values());
  grad = std::move(logits).backward(grad);
  grad = std::move(x4).backward(grad);
  grad = std::move(x3).backward(grad);
  grad = std::move(x2).backward(grad);
  grad = std::move(x1).backward(grad);
  std::move(x0).backward(grad);
  return loss;
}

void train(belay::host::rank& rank, std::size_t steps, const train_moe::corpus& text) {
  // Sizes that a plan would compute: memory for one micro-batch, and symmetric memory for every routed row.
  const model::mixtral_config config = model::tiny();
  const std::size_t rows = sequences * length * config.experts_per_token;
  belay::tier_meter device;
  model::host_engine engine{belay::host_pages{std::size_t{64} << 20}, device};
  belay::symmetric_heap<group> windows{rank.world(), {.bytes = std::size_t{16} << 20, .meter = &device}};
  exchange experts{rank.world(), windows, {config.experts, config.experts_per_token, config.hidden, rows}};
  mixtral net{config, model::model_part::whole(config), {0, config.experts}, experts};

  // Parameters, gradients and optimizer state.
  std::vector<belay::bucket_member<float>> members;
  belay::norm_table table;
  std::vector<belay::norm_place> places;
  net.for_each_parameter([&](auto& parameter) {
    members.emplace_back(parameter, 0);
    places.push_back({table.add(parameter.global_size()), 0});
  });
  belay::gradient_buckets<float, group> gradients{members, {{rank.world()}}, std::size_t{1} << 20, micro_batches};
  std::vector<float> values(gradients.layout().elements()), grads(gradients.layout().gradient_elements());
  gradients.bind(values, grads);
  net.for_each_parameter([](auto& parameter) { parameter.initialise(1); });
  const belay::adamw_settings settings{.learning_rate = 1e-3, .beta2 = 0.95, .decay = 0.1};
  std::vector<float> moments(belay::adamw<float, group>::state_elements(gradients));
  belay::adamw<float, group> optimizer{settings, gradients, moments};
  std::vector<double> squares(table.entries());
  belay::gradient_norm<float> norm_of{table, places, squares};

  std::vector<std::int32_t> tokens(sequences * length), targets(tokens.size());
  constexpr std::size_t tokens_of_step = micro_batches * sequences * length;
  constexpr std::size_t all_targets = micro_batches * sequences * (length - 1);
  net.set_balance_scale(0.01 * static_cast<double>(all_targets) / static_cast<double>(micro_batches * config.layers));
  for (std::size_t number = 1; number <= steps; ++number) {
    const auto begin = std::chrono::steady_clock::now();
    double loss = 0;
    belay::step step{engine};
    experts.begin_step();
    gradients.begin(micro_batches);
    for (std::size_t m = 0; m < micro_batches; ++m) {
      for (std::size_t s = 0; s < sequences; ++s) {
        const std::span sequence(tokens.data() + s * length, length);
        text.sequence(1, {number, m, s}, sequence);
        train_moe::next_token_targets(sequence, std::span(targets.data() + s * length, length));
      }
      const tokens_view x{tokens.data(), {sequences, length}}, y{targets.data(), {sequences, length}};
      loss += forward_and_backward(step.micro_batch(m), net, x, y);
      gradients.contributed(0, members.size(), m);
    }
    auto reduced = gradients.finish(belay::target_tokens{all_targets});
    const auto norm = norm_of(reduced, rank.world());
    step.observe({.non_finite = norm.finite() ? 0U : 1U, .needed_rows = 0});
    auto outcome = std::move(step).commit();  // a step with an open handle does not commit
    if (auto* ok = belay::committed(outcome)) optimizer.apply(*ok, std::move(reduced), norm.clip(1.0));
    static_cast<void>(experts.take_overflow());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("step %zu  loss %.4f  %.0f tok/s  live %zu peak %zu bytes\n", number, loss / double{all_targets},
                double{tokens_of_step} / seconds, device.live_bytes(), device.peak_bytes());
  }
}
}  // namespace

int main(int argc, char** argv) try {
  using train_moe::corpus;
  model::one_thread_per_product();
  const int steps = argc > 1 ? std::atoi(argv[1]) : 20;
  if (steps < 1) throw belay::input_error("STEPS must be a whole number, at least 1");
  const auto text = argc > 2 ? corpus::from_file(argv[2]) : corpus::from_repository(BELAY_SOURCE_DIR);
  belay::host::world{1}.run([&](auto& rank) { train(rank, static_cast<std::size_t>(steps), text); });
} catch (const std::exception& error) {
  std::fprintf(stderr, "01_plain: %s\n", belay::printable_what(error).c_str());
  return 1;
}
