// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A schedule by name that is proven, and runs a layer of your own: two ranks, four layers, eight micro-batches. Any
// schedule trains to the bits of 1f1b, which runs after it.      examples/run 10_zero_bubble [NAME]
#include <cmath>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "belay/parallel/schedule.hpp"

namespace {

constexpr std::size_t depth = 4, micro_batches = 8, rows = 16, width = 32, steps = 60;
using matrix = belay::view<const float, 2>;

// y = tanh(x W'), with the gradients of the input and of the weights in one backward. A schedule with backwards in two
// halves runs the product into `add_to` in the second one.
struct layer {
  belay::parameter<float> weight;
  explicit layer(std::size_t i) : weight({"w" + std::to_string(i), {width, width}, belay::initial::normal(0.2)}) {}
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };
  residue forward(auto& frame, matrix x) {
    const auto y = belay::keep<float>(frame, x.shape());
    frame.product(y, x, transposed(frame.read(weight)));
    frame.each(y.size(), [to = y.data()](auto i) { to[i] = std::tanh(to[i]); });
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    const auto dz = belay::scratch<float>(frame, dy.shape());
    frame.each(dz.size(),
               [z = dz.data(), dy = dy.data(), y = r.out.data()](auto i) { z[i] = dy[i] * (1 - y[i] * y[i]); });
    frame.product(frame.add_to(weight), transposed(dz), r.x);
    frame.product(dx, dz, frame.read(weight));
  }
};

// Layers of one stage; a rank has a stage for each chunk of the schedule.
struct stage_layers {
  std::deque<layer> all;
  auto& layers() { return all; }
};
using stage_type = belay::pipeline_stage<stage_layers>;

struct network {
  std::deque<stage_layers> parts;
  std::deque<stage_type> stages;
  std::vector<stage_type*> by_chunk;
  network(const belay::schedule::dynamic_table& table, std::size_t rank) : parts(table.chunks()) {
    const std::size_t size = depth / table.stages();
    for (std::size_t chunk = 0; chunk < table.chunks(); ++chunk) {
      for (std::size_t i = 0; i < size; ++i) parts[chunk].all.emplace_back(table.stage(rank, chunk) * size + i);
      by_chunk.push_back(&stages.emplace_back(parts[chunk]));
    }
  }
  void for_each_parameter(auto&& visit) {
    for (stage_layers& one : parts)
      for (layer& each : one.all) visit(each.weight);
  }
};

double train(const belay::schedule::dynamic_table& table) {
  double loss = 0;
  const auto body = [&](belay::rank& rank, belay::run& run) {
    belay::mesh mesh{rank, {.pipeline = rank.size()}};
    network net(table, static_cast<std::size_t>(rank.number()));
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    belay::pipeline pipeline{mesh, table, belay::boundary<float>({rows, width})};
    std::vector<float> batch(micro_batches * rows * width);
    for (auto number : run.steps(steps)) {
      for (std::size_t i = 0; i < batch.size(); ++i) batch[i] = 0.5F * std::sin(static_cast<float>(i * number % 97));
      const belay::view<const float, 3> inputs{batch.data(), {micro_batches, rows, width}};
      belay::step step{run.engine(), store};
      pipeline.run(step, belay::stages_of_rank<stage_type>(net.by_chunk), inputs, [&](const auto& scope, matrix y) {
        return belay::squared_error(scope, y, inputs[scope.micro_batch()]);
      });
      auto outcome = std::move(step).commit(mesh, belay::samples{micro_batches * rows});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { loss = mean; });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
      }
    }
  };
  belay::launch(belay::host::world{2}, body, {.explain_faults = belay::fault_explanation::by_handler});
  return loss;
}

}  // namespace

int main(int argc, char** argv) try {
  const char* const name = argc > 1 ? argv[1] : "zb-v";
  const auto table = belay::schedule::named_table(name, 2, micro_batches);
  const auto cost = belay::schedule::cost_of(table, belay::schedule::equal_costs{});
  const auto proof = belay::proof(table);
  std::printf("%s: complete %d, deadlock_free %d, keeps %zu chunks, waits %d of %d units\n", name, proof.complete,
              proof.deadlock_free, proof.peak, int(cost.bubble()), int(cost.total));
  const double loss = train(table), plain = train(belay::schedule::one_f_one_b(2, micro_batches));
  std::printf("loss after %zu steps: %.17g, with 1f1b %.17g\n", steps, loss, plain);
  return loss == plain ? 0 : 1;  // to the bit
} catch (const std::exception& error) {
  std::fprintf(stderr, "10_zero_bubble: %s\n", belay::printable_what(error).c_str());
  return 1;
}
