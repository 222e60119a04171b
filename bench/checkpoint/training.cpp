// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// checkpoint_training <folder> <ranks> <steps> <every> <rounds>
//
// For bench/checkpoint.py: the same run with a checkpoint every so many steps and without, in turn, in one process.
// Four matrices of 512 x 512 with AdamW, 12 MiB of state. Counts from the end of the first step until the last
// checkpoint is committed. Prints the steps per second of each run.
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {
constexpr std::size_t width = 512, rows = 64, micro_batches = 8;  // of all ranks

struct linear {
  belay::parameter<float> weight;
  explicit linear(const char* name) : weight({name, {width, width}, belay::initial::normal(0.03)}) {}
  void for_each_parameter(auto&& visit) { visit(weight); }

  struct residue {
    belay::view<float, 2> out;
    belay::view<const float, 2> x;
  };
  residue forward(auto& frame, belay::view<const float, 2> x) {
    auto y = belay::keep<float>(frame, x.shape());
    frame.product(y, x, frame.read(weight));
    return {y, x};
  }
  void backward(auto& frame, residue&& r, belay::view<const float, 2> dy, belay::view<float, 2> dx) {
    frame.product(frame.add_to(weight), transposed(r.x), dy);
    frame.product(dx, dy, transposed(belay::view<const float, 2>(frame.read(weight))));
  }
};
struct network {
  linear a{"a"}, b{"b"}, c{"c"}, d{"d"};
  void for_each_parameter(auto&& visit) { visit(a.weight), visit(b.weight), visit(c.weight), visit(d.weight); }
};

double steps_per_second(int ranks, std::size_t steps, const belay::checkpoint_options& options) {
  double seconds = 0;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    belay::checkpoints saved{run, mesh, options};
    saved.add(store, optimizer);
    static_cast<void>(saved.open());
    const std::size_t own = micro_batches / static_cast<std::size_t>(rank.size());
    auto x = run.template lease<float>(belay::tier::host, rows * width, "inputs");
    const belay::view<const float, 2> inputs{x.data(), {rows, width}};
    if (!run.rehearsing())
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 17) / 17;
    auto begin = std::chrono::steady_clock::now();
    for (const std::size_t number : run.steps(steps + 1)) {
      belay::step step{run.engine(), store, saved};
      step.micro_batches(own);
      for (std::size_t m = 0; m < own; ++m) {
        auto a = belay::forward(step.micro_batch(m), net.a, belay::constant(inputs));
        auto b = belay::forward(step.micro_batch(m), net.b, a.out());
        auto c = belay::forward(step.micro_batch(m), net.c, b.out());
        auto d = belay::forward(step.micro_batch(m), net.d, c.out());
        auto [loss, gradient] = belay::squared_error(step.micro_batch(m), d.out(), inputs);
        auto next = std::move(d).backward(gradient);
        next = std::move(c).backward(next);
        next = std::move(b).backward(next);
        std::move(a).backward(next);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{micro_batches * rows});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-4});
      if (number == 1) {  // warm
        run.engine().compute().synchronize();
        begin = std::chrono::steady_clock::now();
      }
      static_cast<void>(saved.after(number));
    }
    saved.close();
    run.engine().compute().synchronize();
    if (!run.rehearsing() && rank.number() == 0)
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  belay::launch(belay::host::world{ranks}, body);
  return static_cast<double>(steps) / seconds;
}

void print(const char* name, const std::vector<double>& all, const char* end) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < all.size(); ++i) std::printf("%s%.4f", i == 0 ? "" : ", ", all[i]);
  std::printf("]%s", end);
}
}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6) return std::fprintf(stderr, "checkpoint_training FOLDER RANKS STEPS EVERY ROUNDS\n"), 2;
  const std::string folder = argv[1];
  const int ranks = std::atoi(argv[2]);
  const std::size_t steps = std::strtoul(argv[3], nullptr, 10), every = std::strtoul(argv[4], nullptr, 10);
  std::vector<double> with, without;
  for (std::size_t round = 0; round < std::strtoul(argv[5], nullptr, 10); ++round)
    for (const bool saves : {round % 2 == 0, round % 2 != 0}) {  // each is first as often
      const std::string own = saves ? folder + "/run-" + std::to_string(round) : "";
      const double speed = steps_per_second(ranks, steps, {.folder = own, .every = every, .keep = 1});
      (saves ? with : without).push_back(speed);
      if (saves) std::filesystem::remove_all(own);
    }
  std::printf("{");
  print("with", with, ", ");
  print("without", without, "}\n");
  return 0;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "checkpoint_training: %s\n", belay::printable_what(problem).c_str());
  return 1;
}
