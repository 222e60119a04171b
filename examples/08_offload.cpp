// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A model that is larger than what the device has for it. Parameters and gradients live in pinned memory, the
// optimizer's state in a file; layers find their parameters whole while they run, and the update streams through a
// ring. The same model is then trained with everything in the device: the losses are the same to the bit.
//   examples/run 08_offload [STEPS] [FOLDER]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {
constexpr std::size_t width = 128, rows = 32, depth = 16;
using input = belay::view<const float, 2>;

// y = x + w x
struct block {
  belay::parameter<float> weight;
  explicit block(std::size_t number)
      : weight({"block." + std::to_string(number), {width, width}, belay::initial::normal(0.02)}) {}
  void for_each_parameter(auto&& visit) { visit(weight); }

  struct residue {
    belay::view<float, 2> out;
    input x;
  };
  residue forward(auto& frame, input x) {
    auto y = belay::keep<float>(frame, x.shape());
    frame.product(y, x, transposed(frame.read(weight)));
    frame.each(y.size(), belay::kernel::axpy<float>{1.0F, x.data(), y.data()});
    return {y, x};
  }
  void backward(auto& frame, residue&& r, input dy, belay::view<float, 2> dx) {
    frame.product(frame.add_to(weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(weight));
    frame.each(dx.size(), belay::kernel::axpy<float>{1.0F, dy.data(), dx.data()});
  }
};
struct network {
  std::vector<block> all;
  network() {
    all.reserve(depth);
    for (std::size_t i = 0; i < depth; ++i) all.emplace_back(i);
  }
  void for_each_parameter(auto&& visit) {
    for (block& one : all) visit(one.weight);
  }
};

// Where it all lives.
struct residence {
  belay::tier shards = belay::tier::device;
  belay::optimizer_memory state = {};
};

void train(belay::rank& rank, belay::run& run, std::size_t steps, const residence& where, std::vector<double>& losses) {
  belay::mesh mesh{rank, {.data = rank.size()}};
  network net;
  belay::parameter_store store{run, mesh, net, belay::zero<3>{},
                               belay::store_options{.parameters = where.shards, .gradients = where.shards}};
  std::vector<belay::gathers<block, decltype(store)>> layers;
  for (block& one : net.all) layers.emplace_back(one, store);
  belay::adamw optimizer{store, {}, where.state};
  std::vector<float> x(rows * width), wanted(rows * width);
  for (auto number : run.steps(steps)) {
    belay::step step{run.engine(), store};
    run.engine().run_on_host([&] {
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>((i * 7 + number * 5 + static_cast<std::size_t>(rank.number())) % 17) / 17;
        wanted[i] = 1 - x[i];
      }
    });
    const input inputs{x.data(), {rows, width}}, targets{wanted.data(), {rows, width}};
    belay::handle_store<decltype(belay::forward(step, layers[0], inputs))> handles{depth};
    handles.keep(0, belay::forward(step, layers[0], inputs));
    for (std::size_t i = 1; i < depth; ++i) handles.keep(i, belay::forward(step, layers[i], handles.at(i - 1).out()));
    auto [loss, grad] = belay::squared_error(step, handles.at(depth - 1).out(), targets);
    for (std::size_t i = depth; i-- > 0;) grad = handles.take(i).backward(grad);
    auto outcome = std::move(step).commit(mesh, belay::samples{rows * static_cast<std::size_t>(rank.size())});
    if (auto* ok = belay::committed(outcome)) {
      run.report(*ok, [&](double mean) { losses.push_back(mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
    }
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  if (steps == 0) return std::fprintf(stderr, "08_offload [STEPS] [FOLDER]: at least one step\n"), 2;
  const std::string folder = argc > 2 ? argv[2] : "/tmp";
  const residence lower{belay::tier::pinned, {.state = belay::tier::file, .folder = folder, .chunk = 4096}};
  std::vector<double> offloaded, resident;
  belay::launch_options few{.explain_faults = belay::fault_explanation::by_handler};
  few.budget[belay::tier::device] = std::size_t{1}
                                    << 20;  // parameters, gradients and state are 4 MiB over two ranks...
  const auto body = [&](belay::rank& rank, belay::run& run) { train(rank, run, steps, lower, offloaded); };
  std::printf("%s", belay::rehearse(2, body, few).text(few).c_str());
  belay::launch(belay::host::world{2}, body, few);
  belay::launch(belay::host::world{2},
                [&](belay::rank& rank, belay::run& run) { train(rank, run, steps, residence{}, resident); },
                {.explain_faults = belay::fault_explanation::by_handler});
  for (std::size_t i = 0; i < steps; ++i) std::printf("step %zu  loss %.6f\n", i + 1, offloaded[i]);
  std::printf("everything in the device: the losses are %s\n", offloaded == resident ? "the same" : "others");
  return offloaded == resident ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "08_offload: %s\n", belay::printable_what(error).c_str());
  return 1;
}
