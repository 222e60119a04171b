// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two ranks train a network of two layers of your own. Delete one of the backward lines and build again with Clang: it
// names the handle. With g++ the rehearsal does.    examples/run 00_hello
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {

using matrix = belay::view<const float, 2>;

// A layer is any class with a forward and a backward.
struct linear {
  belay::parameter<float> weight;
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };

  residue forward(auto& frame, matrix x) {
    auto y = belay::keep<float>(frame, {x.extent(0), weight.extent(0)});
    frame.product(y, x, transposed(frame.read(weight)));
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    frame.product(frame.add_to(weight), transposed(dy), r.x);  // says by itself that this micro-batch has contributed
    frame.product(dx, dy, frame.read(weight));
  }
};

struct network {
  linear first{{"first.weight", {32, 16}}}, second{{"second.weight", {4, 32}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

}  // namespace

int main() try {
  const auto train = [](belay::rank& rank, belay::run& run) {
    belay::mesh mesh{rank, {.data = 2}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    std::vector<float> batch(32 * 16), targets(32 * 4);
    for (auto number : run.steps(100)) {
      for (std::size_t i = 0; i < batch.size(); ++i)
        batch[i] = std::sin(float(i * (number + std::size_t(rank.number()))));
      for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = batch[i / 4 * 16 + i % 4] + batch[i / 4 * 16 + 5];
      belay::step step{run.engine(), store};  // everything that takes part is named here
      auto h = belay::forward(step, net.first, belay::constant(matrix{batch.data(), {32, 16}}));
      auto y = belay::forward(step, net.second, h.out());
      auto [loss, grad] = belay::squared_error(step, y.out(), matrix{targets.data(), {32, 4}});
      grad = std::move(y).backward(grad);
      std::move(h).backward(grad);
      auto outcome = std::move(step).commit(mesh, belay::samples{64});  // reduces, divides once, votes
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { std::printf("step %zu  loss %.4f\n", number, mean); });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
      }
    }
  };
  belay::launch(belay::host::world{2}, train, {.explain_faults = belay::fault_explanation::by_handler});
} catch (const std::exception& error) {
  std::fprintf(stderr, "00_hello: %s\n", belay::printable_what(error).c_str());
  return 1;
}
