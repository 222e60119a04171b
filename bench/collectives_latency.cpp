// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Latency of a few collectives on two thread ranks, for comparing one version with another: no contenders, no limits.
// Each iteration is timed by the first rank over calls that both make; what a call costs beside others is measured by
// `bench/run collectives`.
#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "belay/backend/host/world.hpp"
#include "belay/comm/collective.hpp"

namespace {

// Two ranks that make the same number of calls in every iteration; `call(group, buffer)`.
template <class Call>
void on_two_ranks(benchmark::State& state, std::size_t bytes, Call call) {
  const int calls = bytes < 4096 ? 40 : 1;
  std::atomic<int> goes_on{-1};  // how many calls the second rank shall make next; 0: none, ever
  belay::host::world{2, {.pin = belay::host::pinning::one_core_each}}.run([&](belay::host::rank& self) {
    const belay::host::group group = self.world();
    std::vector<float> buffer(bytes / sizeof(float), 1.0F);
    const auto run = [&] {
      for (int i = 0; i < calls; ++i) call(group, buffer);
    };
    if (self.number() == 1) {
      for (int next = goes_on.exchange(-1); next != 0; next = goes_on.exchange(-1)) {
        if (next > 0) run();
      }
      return;
    }
    for (auto _ : state) {
      for (float& x : buffer) x = 1.0F;
      while (goes_on.load() != -1) {
      }
      goes_on = calls;
      const auto start = std::chrono::steady_clock::now();
      run();
      state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls);
    }
    while (goes_on.load() != -1) {
    }
    goes_on = 0;
  });
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(bytes));
}

void barrier(benchmark::State& state) {
  on_two_ranks(state, 0, [](const auto& group, std::vector<float>&) { belay::barrier(group); });
}
BENCHMARK(barrier)->UseManualTime();

void all_reduce(benchmark::State& state) {
  on_two_ranks(state, static_cast<std::size_t>(state.range(0)),
               [](const auto& group, std::vector<float>& buffer) { belay::all_reduce(group, buffer, belay::sum); });
}
BENCHMARK(all_reduce)->Arg(8)->Arg(4096)->Arg(1 << 20)->UseManualTime();

void broadcast(benchmark::State& state) {
  on_two_ranks(state, static_cast<std::size_t>(state.range(0)),
               [](const auto& group, std::vector<float>& buffer) { belay::broadcast(group, buffer, 0); });
}
BENCHMARK(broadcast)->Arg(8)->Arg(1 << 20)->UseManualTime();

}  // namespace

BENCHMARK_MAIN();
