// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What communications of a step hide behind its kernels: two ranks, one on each core, with queued streams. A step is
// sixteen backwards, each of which fills a bucket of 1 MiB that is reduced, or sixteen micro-batches through a pipeline
// of two stages, with 1 MiB to the other one each way. It runs with and without products, each with ranks that
// communicate and with ranks that do not. On a core of its own a rank can hide what its communications wait for, not
// what they copy and add. Exit code 1 below the limit.
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {

constexpr double limit = 0.9;
constexpr std::size_t count = 16, width = 512;  // width x width floats are 1 MiB

using clock_type = std::chrono::steady_clock;
double seconds_since(clock_type::time_point begin) {
  return std::chrono::duration<double>(clock_type::now() - begin).count();
}
double processor_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}
double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

enum class kernels { none, products };
enum class ranks { apart, joined };

using matrix = belay::view<float, 2>;
using const_matrix = belay::view<const float, 2>;

/// Its gradient is a bucket.
struct bucket_layer {
  belay::parameter<float> weight;
  kernels what;
  bucket_layer(std::size_t number, kernels chosen)
      : weight({"weight." + std::to_string(number), {width, width}, belay::initial::constant(0)}), what(chosen) {}

  struct residue {
    belay::view<float, 1> out;
    const_matrix x;
  };
  residue forward(auto& frame, const_matrix x) { return {belay::keep<float>(frame, {1}), x}; }
  void backward(auto& frame, residue&& r, belay::view<const float, 1>, matrix) {
    if (what == kernels::none) return frame.adds_nothing(weight);
    frame.product(frame.add_to(weight), transposed(r.x), r.x);
  }
};

struct bucket_network {
  static constexpr std::size_t rows = 64;
  std::deque<bucket_layer> layers;
  bucket_network(const auto&, kernels what) {
    for (std::size_t i = 0; i < count; ++i) layers.emplace_back(i, what);
  }
  void for_each_parameter(auto&& visit) {
    for (bucket_layer& one : layers) visit(one.weight);
  }
  static belay::axes mesh(ranks how) {
    return how == ranks::joined ? belay::axes{.data = 2} : belay::axes{.tensor = 2};
  }
  /// Runs the micro-batches of a step. `one` outlives it.
  static auto runner(const auto&, bucket_network& own, const_matrix inputs, const float& one) {
    return [&own, inputs, &one](const auto& step) {
      for (bucket_layer& layer : own.layers) {
        auto y = belay::forward(step, layer, belay::constant(inputs));
        std::move(y).backward({&one, {1}});
      }
    };
  }
};

/// A message from the other stage or to it has 1 MiB, of which a product reads 64 columns.
struct stage_layer {
  static constexpr std::size_t read = 64;
  belay::parameter<float> weight;
  kernels what;
  stage_layer(int number, kernels chosen)
      : weight({"weight." + std::to_string(number), {read, width}, belay::initial::normal(0.05)}), what(chosen) {}

  struct residue {
    matrix out;
    const_matrix x;
  };
  residue forward(auto& frame, const_matrix x) {
    const matrix y = belay::keep<float>(frame, x.shape());
    compute(frame, y, x);
    return {y, x};
  }
  void backward(auto& frame, residue&& r, const_matrix dy, matrix dx) {
    compute(frame, dx, dy);
    if (what == kernels::none) return frame.adds_nothing(weight);
    frame.product(frame.add_to(weight), transposed(some(r.x)), dy);
  }

 private:
  static belay::operand<const float> some(const_matrix x) {
    return belay::operand<const float>(x).column_range(0, read);
  }
  void compute(auto& frame, matrix y, const_matrix x) {
    if (y.data() == nullptr && !frame.rehearsing()) return;  // a batch has no gradient
    if (what == kernels::none) return frame.each(y.size(), belay::kernel::fill<float>{y.data(), 0.5F});
    frame.product(y, some(x), frame.read(weight));
  }
};

struct stage_network {
  static constexpr std::size_t rows = width;
  std::deque<stage_layer> all;
  stage_network(const auto& mesh, kernels what) { all.emplace_back(mesh.coordinate().pipeline, what); }
  [[nodiscard]] std::deque<stage_layer>& layers() { return all; }
  void for_each_parameter(auto&& visit) { visit(all.front().weight); }
  static belay::axes mesh(ranks how) {
    return how == ranks::joined ? belay::axes{.pipeline = 2} : belay::axes{.tensor = 2};
  }
  // All forwards come first: in a schedule with few micro-batches at once each exchange is waited for.
  static auto runner(const auto& mesh, stage_network& own, const_matrix inputs, const float&) {
    const auto stages = static_cast<std::size_t>(mesh.shape().pipeline);
    belay::pipeline pipeline{mesh, belay::schedule::gpipe(stages, count), belay::boundary<float>({rows, width})};
    return [inputs, stage = std::make_unique<belay::pipeline_stage<stage_network>>(own),
            pipeline = std::move(pipeline)](const auto& step) mutable {
      pipeline.run(
          step, *stage, [inputs](std::size_t) { return inputs; },
          [inputs](const auto& scope, const_matrix y) { return belay::squared_error(scope, y, inputs); });
    };
  }
};

/// Of a step: seconds of the slower rank, and of a core.
struct figures {
  std::vector<double> seconds, core;
};

// `steps` steps, the first two not counted.
template <class Network>
void measure(kernels what, ranks how, std::size_t steps, figures& out) {
  std::array<std::vector<double>, 2> seconds;
  double used = 0;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, Network::mesh(how)};
    Network net(mesh, what);
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    auto memory = run.template lease<float>(belay::tier::host, Network::rows * width, "inputs");
    if (!run.rehearsing()) std::fill(memory.begin(), memory.end(), 0.5F);
    const float one = 1;
    auto runner = Network::runner(mesh, net, const_matrix{memory.data(), {Network::rows, width}}, one);
    double before = 0;
    for (const std::size_t number : run.steps(steps)) {
      if (number == 3 && rank.number() == 0) before = processor_seconds();
      const auto begin = clock_type::now();
      belay::step step{run.engine(), store};
      runner(step);
      auto outcome = std::move(step).commit(mesh, belay::samples{count});  // it is over on all ranks
      if (auto* ok = belay::committed(outcome)) std::move(*ok).discard();
      run.engine().synchronize();
      if (number > 2 && !run.rehearsing())
        seconds[static_cast<std::size_t>(rank.number())].push_back(seconds_since(begin));
    }
    if (rank.number() == 0) used = processor_seconds() - before;
  };
  belay::launch(belay::host::world{2, {.pin = belay::host::pinning::one_core_each}}, body,
                {.streams = {belay::stream_policy::queued, 0}});
  for (std::size_t i = 0; i < seconds[0].size(); ++i) out.seconds.push_back(std::max(seconds[0][i], seconds[1][i]));
  out.core.push_back(used / 2 / static_cast<double>(steps - 2));
}

// Whether enough is hidden. `idle` is the part of products alone that a schedule adds.
template <class Network>
bool report_overlap(const char* name, double idle, std::size_t rounds, std::size_t steps) {
  std::array<std::array<figures, 2>, 2> all;  // by kernels, by ranks
  for (std::size_t round = 0; round < rounds; ++round)
    for (const kernels what : {kernels::none, kernels::products})
      for (const ranks how : {ranks::apart, ranks::joined})
        measure<Network>(what, how, steps, all[static_cast<std::size_t>(what)][static_cast<std::size_t>(how)]);
  const auto of = [&all](kernels what, ranks how) -> const figures& {
    return all[static_cast<std::size_t>(what)][static_cast<std::size_t>(how)];
  };
  const auto seconds = [&of](kernels what, ranks how) { return median(of(what, how).seconds); };
  const double rest = seconds(kernels::none, ranks::apart);  // a step without either
  const double products = (seconds(kernels::products, ranks::apart) - rest) * (1 + idle);
  const double communications = seconds(kernels::none, ranks::joined) - rest;
  const double on_core = median(of(kernels::none, ranks::joined).core) - median(of(kernels::none, ranks::apart).core);
  const double in_turn = rest + products + communications, overlapped = seconds(kernels::products, ranks::joined);
  const double could = communications - on_core;
  const bool nothing = could < 0.02 * in_turn;
  const double hidden = nothing ? 1 : (in_turn - overlapped) / could;
  std::printf(
      "%s: products %.2f ms, communications %.2f ms (%.2f of them on the core), the rest %.2f ms, all in turn %.2f ms, "
      "overlapped %.2f ms\n",
      name, 1e3 * products, 1e3 * communications, 1e3 * on_core, 1e3 * rest, 1e3 * in_turn, 1e3 * overlapped);
  std::printf("overlap: %s hide %.2f of the %.2f ms that can be hidden%s (limit %.1f)\n", name, hidden, 1e3 * could,
              nothing ? ", too little to tell" : "", limit);
  return hidden >= limit;
}

// Nanoseconds of a queued piece of work, and of a place that two streams hand to each other.
std::array<double, 2> costs_of_a_queue() {
  belay::host_stream one({belay::stream_policy::queued}), other({belay::stream_policy::queued});
  const auto time = [](std::size_t times, const auto& work) {
    const auto begin = clock_type::now();
    for (std::size_t i = 0; i < times; ++i) work();
    return begin;
  };
  const auto queued = time(20'000, [&] { one.run([] {}); });
  one.synchronize();
  const double closure = seconds_since(queued) / 20'000;
  const auto handed = time(2'000, [&] {
    one.run([] {});
    other.wait(one.record());
    other.run([] {});
    one.wait(other.record());
  });
  one.synchronize();
  return {1e9 * closure, 1e9 * seconds_since(handed) / 4'000};
}

}  // namespace

int main() try {
  const bool quick = std::getenv("BELAY_BENCH_SMOKE") != nullptr;
  const std::size_t rounds = quick ? 1 : 7, steps = quick ? 3 : 22;
  const bool buckets = report_overlap<bucket_network>("16 buckets of 1 MiB", 0, rounds, steps);
  const bool stages = report_overlap<stage_network>("16 micro-batches of 1 MiB each way", 1.0 / count, rounds, steps);
  const auto [closure, hand_over] = costs_of_a_queue();
  std::printf("a queued piece of work costs %.0f ns, a hand-over from one stream to another %.0f ns\n", closure,
              hand_over);
  return (buckets && stages) || quick ? 0 : 1;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "overlap: %s\n", problem.what());
  return 2;
}
