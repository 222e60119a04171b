// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks divide parameters, gradients and the optimizer's state (ZeRO-3). The layer is the user's and knows nothing of
// it: `gathers` gives it its parameters for the time of a call. Prints what each rank keeps, and how often a layer's
// parameters were there before it asked.
//   examples/run 05_sharded [STEPS]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {
constexpr std::size_t width = 128, rows = 16, depth = 6, micro_batches = 4;

// y = max(0, w x + b): a layer of one's own. What it reads is what it lists.
struct block {
  belay::parameter<float> weight, bias;
  explicit block(std::size_t number)
      : weight({"block." + std::to_string(number) + ".weight", {width, width}, belay::initial::normal(0.12)}),
        bias({.name = "block." + std::to_string(number) + ".bias", .shape = {width}}) {}
  void for_each_parameter(auto&& visit) { visit(weight), visit(bias); }

  struct residue {
    belay::view<float, 2> out;
    belay::view<const float, 2> x;
  };
  residue forward(auto& frame, belay::view<const float, 2> x) {
    auto y = belay::keep<float>(frame, x.shape());
    frame.product(y, x, transposed(frame.read(weight)));
    const belay::view<const float, 1> b = frame.read(bias);
    frame.run([=] {
      for (std::size_t i = 0; i < y.size(); ++i) {
        const float sum = y.data()[i] + b(i % width);
        y.data()[i] = sum > 0 ? sum : 0;
      }
    });
    return {y, x};
  }
  void backward(auto& frame, residue&& r, belay::view<const float, 2> dy, belay::view<float, 2> dx) {
    auto inner = belay::scratch<float>(frame, dy.shape());
    const belay::view<float, 1> db = frame.add_to(bias);
    frame.run([=, y = r.out] {
      for (std::size_t i = 0; i < dy.size(); ++i) {
        inner.data()[i] = y.data()[i] > 0 ? dy.data()[i] : 0;
        db(i % width) += inner.data()[i];
      }
    });
    const belay::view<const float, 2> given = inner;
    frame.product(frame.add_to(weight), transposed(given), r.x);
    frame.product(dx, given, frame.read(weight));
  }
};

// A network offers its layers: what is divided is gathered and reduced layer by layer.
struct network {
  std::vector<block> blocks;
  network() {
    blocks.reserve(depth);
    for (std::size_t i = 0; i < depth; ++i) blocks.emplace_back(i);
  }
  std::vector<block>& layers() { return blocks; }
  void for_each_parameter(auto&& visit) {
    for (block& one : blocks) one.for_each_parameter(visit);
  }
};

void train(belay::rank& rank, belay::run& run, std::size_t steps) {
  belay::mesh mesh{rank, {.data = rank.size()}};
  network net;
  belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
  std::vector<belay::gathers<block, decltype(store)>> whole;  // each a layer
  for (block& one : net.blocks) whole.emplace_back(one, store);
  belay::adamw optimizer{store};
  std::vector<float> x(rows * width), target(rows * width);
  const belay::view<const float, 2> inputs{x.data(), {rows, width}}, targets{target.data(), {rows, width}};
  for (auto number : run.steps(steps)) {
    belay::step step{run.engine(), store};
    step.micro_batches(micro_batches);
    for (std::size_t m = 0; m < micro_batches; ++m) {
      run.engine().run_on_host([&] {
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] = static_cast<float>((i * 7 + m * 13 + number * 5 + static_cast<std::size_t>(rank.number())) % 17) / 17;
          target[i] = x[i] * x[i];
        }
      });
      belay::handle_store<decltype(belay::forward(step.micro_batch(m), whole[0], inputs))> handles{depth};
      handles.keep(0, belay::forward(step.micro_batch(m), whole[0], inputs));
      for (std::size_t i = 1; i < depth; ++i)
        handles.keep(i, belay::forward(step.micro_batch(m), whole[i], handles.at(i - 1).out()));
      auto [loss, grad] = belay::squared_error(step.micro_batch(m), handles.at(depth - 1).out(), targets);
      for (std::size_t i = depth; i-- > 0;) grad = handles.take(i).backward(grad);
    }
    auto outcome =
        std::move(step).commit(mesh, belay::samples{micro_batches * rows * static_cast<std::size_t>(rank.size())});
    if (auto* ok = belay::committed(outcome)) {
      const belay::gather_counts found = store.take_gathered();
      run.report(*ok, [&](double mean) {
        std::printf("step %zu  loss %.4f  %llu gathers started early, %llu not\n", number, mean,
                    static_cast<unsigned long long>(found.prefetched),
                    static_cast<unsigned long long>(found.in_order + found.missed));
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
    }
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  if (steps == 0) return std::fprintf(stderr, "05_sharded [STEPS]: at least one step\n"), 2;
  const auto body = [&](belay::rank& rank, belay::run& run) { train(rank, run, steps); };
  const belay::launch_options how{.explain_faults = belay::fault_explanation::by_handler};
  std::printf("%s", belay::rehearse(4, body, how).text().c_str());
  belay::launch(belay::host::world{4}, body, how);
} catch (const std::exception& error) {
  std::fprintf(stderr, "05_sharded: %s\n", belay::printable_what(error).c_str());
  return 1;
}
