// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A run that writes checkpoints beside its training, ends as asked with SIGTERM (exit code 75), and goes on from the
// newest one, with as many ranks as there are then. A second run of the same folder resumes:
//   examples/run 07_checkpoint runs/a 4 40        # folder, ranks, steps in all
//   examples/run 07_checkpoint runs/a 3 80
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {
constexpr std::size_t width = 96, rows = 8, micro_batches = 12;  // of all ranks

// y = x w: a layer of one's own.
struct linear {
  belay::parameter<float> weight{{"weight", {width, width}, belay::initial::normal(0.1)}};
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

// Where the data are: the next sample of the whole run, whatever its ranks. Saved and loaded as text.
struct data_cursor {
  std::size_t next = 0;
  [[nodiscard]] std::string save() const { return std::to_string(next); }
  void load(std::string_view text) { next = std::strtoul(std::string(text).c_str(), nullptr, 10); }
};

void train(belay::rank& rank, belay::run& run, const std::string& folder, std::size_t steps,
           const belay::stop_request& stop) {
  belay::mesh mesh{rank, {.data = rank.size()}};
  linear net;
  belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
  belay::adamw optimizer{store};
  data_cursor data;

  belay::checkpoints saved{run, mesh, {.folder = folder, .every = 10, .keep = 2, .stop = &stop}};
  saved.add(store, optimizer);
  saved.add("data", data);
  const belay::resumed_run from = saved.open(belay::resume_from::newest);
  if (rank.number() == 0 && from.step > 0) std::printf("resumed from %s\n", from.folder.c_str());
  for (const belay::file_error& each : from.left) std::fprintf(stderr, "%s\n", each.what());

  const std::size_t own = micro_batches / static_cast<std::size_t>(rank.size());
  auto x = run.lease<float>(belay::tier::host, rows * width, "inputs");
  auto target = run.lease<float>(belay::tier::host, rows * width, "targets");
  const belay::view<const float, 2> inputs{x.data(), {rows, width}}, targets{target.data(), {rows, width}};
  for (const std::size_t number : run.steps(steps, from.step)) {
    belay::step step{run.engine(), store, saved};  // "mine is written" joins its vote
    step.micro_batches(own);
    for (std::size_t m = 0; m < own; ++m) {
      const std::size_t sample = data.next + static_cast<std::size_t>(rank.number()) * own + m;
      run.engine().run_on_host([&] {
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] = static_cast<float>((i * 7 + sample * 13) % 17) / 17;
          target[i] = x[i] / 2;
        }
      });
      auto hidden = belay::forward(step.micro_batch(m), net, inputs);
      auto [loss, gradient] = belay::squared_error(step.micro_batch(m), hidden.out(), targets);
      static_cast<void>(std::move(hidden).backward(gradient));
    }
    auto outcome = std::move(step).commit(mesh, belay::samples{micro_batches * rows});
    if (auto* ok = belay::committed(outcome)) {
      run.report(*ok, [&](double mean) { std::printf("step %zu  loss %.9f\n", number, mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
      data.next += micro_batches;
      if (saved.after(number)) break;  // somebody asked to stop
      if (const auto problem = saved.take_problem())
        std::fprintf(stderr, "rank %d: %s; training goes on\n", rank.number(), problem->what());
    }
  }
  saved.close();
}
}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) return std::fprintf(stderr, "07_checkpoint FOLDER RANKS STEPS\n"), 2;
  const int ranks = std::atoi(argv[2]);
  if (ranks < 1 || micro_batches % static_cast<std::size_t>(ranks) != 0)
    return std::fprintf(stderr, "07_checkpoint: RANKS divides %zu\n", micro_batches), 2;
  const belay::stop_request stop;
  belay::launch(
      belay::host::world{ranks},
      [&](belay::rank& rank, belay::run& run) { train(rank, run, argv[1], std::strtoul(argv[3], nullptr, 10), stop); },
      {.explain_faults = belay::fault_explanation::by_handler});
  return stop.followed() ? belay::exit_code_of_a_stop : 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "07_checkpoint: %s\n", belay::printable_what(error).c_str());
  return 1;
}
