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
#include "model/embedding.hpp"
#include "model/head.hpp"
#include "train_moe/corpus.hpp"

namespace {
constexpr std::size_t micro_batches = 9, length = 128, hidden = 64, all_targets = micro_batches * (length - 1);

// Predicts a byte from the one before: the smallest language model.
struct network {
  model::embedding<float> embedding{"embedding", 256, hidden};
  model::head<float> head{"norm", "head", 256, hidden, 1e-5};
  void for_each_parameter(auto&& visit) { embedding.for_each_parameter(visit), head.for_each_parameter(visit); }
};

void train(belay::rank& rank, belay::run& run, std::size_t steps, const train_moe::corpus& text) {
  belay::mesh mesh{rank, {.data = rank.size()}};
  const auto mine = belay::even_part(micro_batches, static_cast<std::size_t>(rank.size()),
                                     static_cast<std::size_t>(rank.number()));  // another rank may have one more
  network net;
  belay::parameter_store store{run, mesh, net, belay::zero<1>{}, belay::store_options{.bucket_bytes = 65536}};
  belay::adamw optimizer{store};
  std::vector<std::int32_t> tokens(length), targets(length);
  const belay::view<const std::int32_t, 2> x{tokens.data(), {1, length}}, y{targets.data(), {1, length}};
  for (auto number : run.steps(steps)) {
    belay::step step{run.engine(), store};
    step.micro_batches(mine.count);
    for (std::size_t m = 0; m < mine.count; ++m) {
      train_moe::read_micro_batch(text, number, mine.first + m, length, tokens, targets);
      const auto scope = step.micro_batch(m);
      auto embedded = belay::forward(scope, net.embedding, x);
      auto logits = belay::forward(scope, net.head, embedded.out());
      auto [loss, grad] = belay::cross_entropy(scope, logits.out(), y);
      grad = std::move(logits).backward(grad);
      std::move(embedded).backward(grad);
    }
    auto outcome = std::move(step).commit(mesh, belay::target_tokens{all_targets});  // of the whole batch, everywhere
    if (auto* ok = belay::committed(outcome)) {
      run.report(*ok, [&](double mean) { std::printf("step %zu  loss %.4f\n", number, mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 3e-3});
    }
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const auto text = train_moe::corpus::from_repository(BELAY_SOURCE_DIR);
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  if (steps == 0) return std::fprintf(stderr, "04_data_parallel [STEPS]: at least one step\n"), 2;
  const auto body = [&](belay::rank& rank, belay::run& run) { train(rank, run, steps, text); };
  const bool by_hand = belay::find_launcher().launcher == std::string("none");
  const belay::launch_options how{.explain_faults = belay::fault_explanation::by_handler};
  if (by_hand) std::printf("%s", belay::rehearse(4, body, how).text().c_str());  // what each rank will lease
  by_hand ? belay::launch(belay::host::world{4}, body, how) : belay::launch(belay::host::world::from_env(), body, how);
} catch (const std::exception& error) {
  std::fprintf(stderr, "04_data_parallel: %s\n", belay::printable_what(error).c_str());
  return 1;
}
