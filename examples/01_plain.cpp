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
#include "belay/belay.hpp"
#include "model/mixtral.hpp"
#include "model/products.hpp"
#include "train_moe/corpus.hpp"

namespace {
constexpr std::size_t micro_batches = 8, sequences = 4, length = 128, all_targets = 8 * 4 * (length - 1);
using tokens_view = belay::view<const std::int32_t, 2>;

void forward_and_backward(const auto& scope, auto& net, const auto& tokens, const auto& targets) {
  auto x0 = belay::forward(scope, net.first(), tokens_view{tokens.data(), {sequences, length}});
  auto x1 = belay::forward(scope, net.layers()[0], x0.out());
  auto x2 = belay::forward(scope, net.layers()[1], x1.out());
  auto x3 = belay::forward(scope, net.layers()[2], x2.out());
  auto x4 = belay::forward(scope, net.layers()[3], x3.out());
  auto logits = belay::forward(scope, net.last(), x4.out());
  auto [loss, top] = belay::cross_entropy(scope, logits.out(), tokens_view{targets.data(), {sequences, length}});
  auto grad = std::move(logits).backward(top);
  grad = std::move(x4).backward(grad);
  grad = std::move(x3).backward(grad);
  grad = std::move(x2).backward(grad);
  grad = std::move(x1).backward(grad);
  std::move(x0).backward(grad);
}

void train(belay::rank& rank, belay::run& run, std::size_t steps, const train_moe::corpus& text) {
  belay::mesh mesh{rank, {}};
  const model::mixtral_config config = model::tiny();
  const std::size_t k = config.experts_per_token, rows = sequences * length * k;  // all may go to one rank
  belay::expert_exchange experts{run, mesh.expert(), {config.experts, k, config.hidden, rows}};
  model::mixtral<float, decltype(experts)> net{config, model::model_part::whole(config), {0, config.experts}, experts};
  net.set_balance_scale(0.01 * double{all_targets} / static_cast<double>(micro_batches * config.layers));
  belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
  belay::adamw optimizer{store, {.beta2 = 0.95, .decay = 0.1}};
  std::vector<std::int32_t> tokens(sequences * length), targets(tokens.size());
  for (auto number : run.steps(steps)) {
    const auto begin = std::chrono::steady_clock::now();
    belay::step step{run.engine(), store, experts};
    step.micro_batches(micro_batches);
    for (std::size_t m = 0; m < micro_batches; ++m) {
      train_moe::read_micro_batch(text, number, m, length, tokens, targets);
      forward_and_backward(step.micro_batch(m), net, tokens, targets);
    }
    auto outcome = std::move(step).commit(mesh, belay::target_tokens{all_targets});
    auto* ok = belay::committed(outcome);
    if (ok == nullptr) continue;
    run.report(*ok, [&](double mean) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      std::printf("step %zu  loss %.4f  %.0f tok/s\n", number, mean, 4096 / took.count());  // 8 x 4 x 128 tokens
    });
    optimizer.apply(std::move(*ok), {.learning_rate = 1e-3, .clip = 1.0});
  }
}
}  // namespace

int main(int argc, char** argv) try {
  model::one_thread_per_product();
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  if (steps == 0) return std::fprintf(stderr, "01_plain [STEPS] [FILE]: at least one step\n"), 2;
  const auto text = train_moe::corpus::from(argc > 2 ? argv[2] : "", BELAY_SOURCE_DIR);
  belay::launch(belay::host::world{1}, [&](belay::rank& rank, belay::run& run) { train(rank, run, steps, text); },
                {.products = model::products(), .explain_faults = belay::fault_explanation::by_handler});
} catch (const std::exception& error) {
  std::fprintf(stderr, "01_plain: %s\n", belay::printable_what(error).c_str());
  return 1;
}
