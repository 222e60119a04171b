// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A step of train_moe on one rank against the products of that step alone: the same products of the same memory in the
// same order, without what the step does in between. Each step is followed by its own replay, so both see the machine
// in the same state.  bench/run one_rank
#include "model/products.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/kernel/product.hpp"
#include "belay/train/launch.hpp"
#include "model/mixtral.hpp"
#include "train_moe/corpus.hpp"
#include "train_moe/prepared_run.hpp"
#include "train_moe/trainer.hpp"

namespace {

/// The products of the examples, each of which is also listed.
struct listed_products {
  using call = belay::product_call<float>;

  static void product(const call& of) {
    list().push_back(of);
    belay::kernel::product<float>(model::products(), of);
  }
  static void product(const belay::product_call<double>& of) { belay::kernel::product<double>(model::products(), of); }
  static std::vector<call>& list() {
    static std::vector<call> calls;
    return calls;
  }
};

using seconds = std::chrono::duration<double>;

double timed(auto&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return seconds(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// What the step wrote it does not read again, so its memory may be written once more.
void replay(const std::vector<listed_products::call>& calls) {
  const belay::host_products by = model::products();
  for (const auto& call : calls) belay::kernel::product<float>(by, call);
}

void measure(auto& trainer, auto& run, std::size_t steps) {
  std::vector<double> whole, alone;
  double operations = 0;
  for (const std::size_t number : run.steps(steps)) {
    auto& calls = listed_products::list();
    calls.clear();
    bool done = false;
    const double step = timed([&] { done = trainer.train(number).has_value(); });
    if (run.rehearsing() || !done || number <= 2) continue;  // the first two warm up
    whole.push_back(step);
    alone.push_back(timed([&] { replay(calls); }));
    operations = 0;
    for (const auto& call : calls) operations += 2 * static_cast<double>(call.c.rows * call.c.columns * call.a.width());
  }
  if (run.rehearsing()) return;
  if (whole.empty()) throw belay::input_error("STEPS: at least 3, of which two warm up");
  std::printf("products alone: %s, %.0f GFLOP/s over %zu products\n", model::product_backend().c_str(),
              operations / median(alone) / 1e9, listed_products::list().size());
  std::printf("one_rank: a step takes %.3f of the time of its products alone (limit 1.33)\n",
              median(whole) / median(alone));
}

}  // namespace

int main(int argc, char** argv) try {
  model::one_thread_per_product();
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  train_moe::options settings;
  settings.mesh = {};
  settings.steps = steps;
  const train_moe::corpus text = train_moe::corpus::from_repository(BELAY_SOURCE_DIR);
  const train_moe::corpus_source source(text, settings.seed);
  const auto body = [&](belay::rank& rank, belay::run& run) {
    train_moe::trainer<float, belay::run> trainer(settings, rank, run, source);
    measure(trainer, run, steps);
  };
  belay::launch(belay::host::world{1}, body, {.products = {listed_products::product, listed_products::product}});
} catch (const std::exception& error) {
  std::fprintf(stderr, "one_rank: %s\n", error.what());
  return 1;
}
