// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a handle costs beside raw pointers: the same layer called through forward and backward of a step, and
// called with memory that is simply there.
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <vector>

#include "belay/parallel/parameter.hpp"
#include "belay/step.hpp"

namespace {

// Almost no arithmetic, so that the handle is what is measured.
struct memory_access {
  struct residue {
    belay::view<float, 1> out;
    belay::view<const float, 1> x;
  };
  float gradient = 0;

  [[nodiscard]] static const char* name() { return "memory_access"; }

  template <class Frame>
  residue forward(Frame& frame, belay::view<const float, 1> x) {
    residue r{frame.template keep<float>(x.shape()), x};
    frame.run([&] { r.out[0] = 2 * x[0]; });
    return r;
  }
  template <class Frame>
  void backward(Frame& frame, residue&& r, belay::view<const float, 1> dout, belay::view<float, 1> dx) {
    frame.run([&] {
      dx[0] = 2 * dout[0];
      gradient += r.x[0];
    });
  }
};

void raw_pointers(benchmark::State& state) {
  float memory[32] = {1};
  float* const everything = memory;
  benchmark::DoNotOptimize(everything);
  memory_access layer;
  for (auto _ : state) {
    memory[16] = 2 * memory[0];
    benchmark::ClobberMemory();
    memory[17] = 2 * memory[16];
    layer.gradient += memory[0];
    benchmark::ClobberMemory();
  }
  benchmark::DoNotOptimize(layer.gradient);
}
BENCHMARK(raw_pointers);

// The same memory taken and given back by hand: what a handle adds is the difference to handle_with_leases.
void raw_pointers_with_leases(benchmark::State& state) {
  belay::tier_meter meter;
  belay::arena<belay::host_pages> arena{belay::tier::device, belay::host_pages{1 << 20}, 1024, meter};
  float memory[16] = {1};
  memory_access layer;
  for (auto _ : state) {
    belay::lease_chain kept, passed;
    auto* const out = reinterpret_cast<float*>(arena.lease_bytes(sizeof memory, kept));
    out[0] = 2 * memory[0];
    benchmark::ClobberMemory();
    auto* const dx = reinterpret_cast<float*>(arena.lease_bytes(sizeof memory, passed));
    dx[0] = 2 * out[0];
    layer.gradient += memory[0];
    arena.release(kept);
    benchmark::DoNotOptimize(dx);
    benchmark::ClobberMemory();
    arena.release(passed);
  }
  benchmark::DoNotOptimize(layer.gradient);
}
BENCHMARK(raw_pointers_with_leases);

// `run(step, layer, x)` is the forward and the backward of each round.
template <class Run>
void run_handles(benchmark::State& state, const Run& run) {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 20}, meter};
  float memory[16] = {1};
  const belay::view<const float, 1> x{memory, {16}};
  memory_access layer;
  belay::step step{engine};
  for (auto _ : state) {
    run(step, layer, x);
    benchmark::ClobberMemory();
  }
  auto outcome = std::move(step).commit();
  benchmark::DoNotOptimize(outcome);
}
void handle_with_leases(benchmark::State& state) {
  run_handles(state, [](const auto& step, memory_access& layer, belay::view<const float, 1> x) {
    auto handle = belay::forward(step, layer, x);
    benchmark::ClobberMemory();
    const auto dout = handle.out();
    auto dx = std::move(handle).backward(dout);
    benchmark::DoNotOptimize(dx.values().data());
  });
}
BENCHMARK(handle_with_leases);

// A backward in two halves.
void handle_in_halves(benchmark::State& state) {
  run_handles(state, [](const auto& step, memory_access& layer, belay::view<const float, 1> x) {
    auto handle = belay::forward(step, layer, x);
    benchmark::ClobberMemory();
    const auto dout = handle.out();
    auto half = std::move(handle).backward_input(dout);
    auto dx = half.input_gradient();
    benchmark::DoNotOptimize(dx.values().data());
    std::move(half).weights();
  });
}
BENCHMARK(handle_in_halves);

// The same layer with `Count` parameters, to whose gradients its backward adds: what each `add_to` costs is the
// difference to handle_with_leases, divided by their number.
struct counted final : belay::contribution_target {
  void contribute(std::size_t, const belay::stream_event&, belay::where) override { ++contributions; }
  std::size_t contributions = 0;
};
struct adding_layer {
  struct residue {
    belay::view<float, 1> out;
    belay::view<const float, 1> x;
  };
  std::vector<belay::parameter<float>>& weights;

  [[nodiscard]] static const char* name() { return "adding"; }

  template <class Frame>
  residue forward(Frame& frame, belay::view<const float, 1> x) {
    residue r{frame.template keep<float>(x.shape()), x};
    frame.run([&] { r.out[0] = 2 * x[0]; });
    return r;
  }
  template <class Frame>
  void backward(Frame& frame, residue&& r, belay::view<const float, 1> dout, belay::view<float, 1> dx) {
    for (auto& weight : weights) {
      float* const sum = frame.add_to(weight).data();
      frame.run([&] { sum[0] += r.x[0]; });
    }
    frame.run([&] { dx[0] = 2 * dout[0]; });
  }
};
template <std::size_t Count>
void handle_with_parameters(benchmark::State& state) {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 20}, meter};
  float memory[16] = {1}, value = 1;
  std::array<float, Count> gradients{};
  std::array<counted, Count> targets;
  std::vector<belay::parameter<float>> weights;
  for (std::size_t i = 0; i < Count; ++i) weights.emplace_back(belay::parameter_spec{"weight", {1}});
  for (std::size_t i = 0; i < Count; ++i) weights[i].bind(&value, &gradients[i], &targets[i]);
  const belay::view<const float, 1> x{memory, {16}};
  adding_layer layer{weights};
  belay::step step{engine};
  for (auto _ : state) {
    auto handle = belay::forward(step, layer, x);
    benchmark::ClobberMemory();
    const auto dout = handle.out();
    auto dx = std::move(handle).backward(dout);
    benchmark::DoNotOptimize(dx.values().data());
    benchmark::ClobberMemory();
  }
  auto outcome = std::move(step).commit();
  benchmark::DoNotOptimize(outcome);
}
BENCHMARK(handle_with_parameters<1>);
BENCHMARK(handle_with_parameters<4>);

void open_and_discharge(benchmark::State& state) {
  belay::ledger obligations;
  belay::obligation what;
  what.layer = "layer";
  for (auto _ : state) {
    benchmark::DoNotOptimize(what);
    const belay::obligation_id opened = obligations.open(what);
    benchmark::ClobberMemory();
    obligations.close(opened);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(open_and_discharge);

void lease_and_release(benchmark::State& state) {
  belay::tier_meter meter;
  belay::arena<belay::host_pages> arena{belay::tier::device, belay::host_pages{1 << 20}, 1024, meter};
  for (auto _ : state) {
    belay::lease_chain chain;
    benchmark::DoNotOptimize(arena.lease_bytes(4096, chain));
    arena.release(chain);
  }
}
BENCHMARK(lease_and_release);

void step_without_work(benchmark::State& state) {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 20}, meter};
  for (auto _ : state) {
    belay::step step{engine};
    auto outcome = std::move(step).commit();
    benchmark::DoNotOptimize(outcome);
  }
}
BENCHMARK(step_without_work);

}  // namespace

BENCHMARK_MAIN();
