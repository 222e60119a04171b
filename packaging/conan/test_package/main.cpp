// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two ranks train a layer for two steps: what a package holds compiles, links and runs.
#include <cstdio>
#include <vector>

#include <belay/backend/host.hpp>
#include <belay/belay.hpp>

using matrix = belay::view<const float, 2>;

struct linear {
  belay::parameter<float> weight{{"weight", {4, 8}}};
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };
  residue forward(auto& frame, matrix x) {
    auto y = belay::keep<float>(frame, {x.extent(0), weight.extent(0)});
    frame.product(y, x, transposed(frame.read(weight)));
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy) { frame.product(frame.add_to(weight), transposed(dy), r.x); }
  void for_each_parameter(auto&& visit) { visit(weight); }
};

int main() {
  belay::launch(belay::host::world{2}, [](belay::rank& rank, belay::run& run) {
    belay::mesh mesh{rank, {.data = 2}};
    linear layer;
    belay::parameter_store store{run, mesh, layer, belay::zero<1>{}};
    belay::adamw optimizer{store};
    const std::vector<float> x(2 * 8, 1.0F), wanted(2 * 4, 0.5F);
    for (const std::size_t number : run.steps(2)) {
      belay::step step{run.engine(), store};
      auto y = belay::forward(step, layer, belay::constant(matrix{x.data(), {2, 8}}));
      auto [loss, grad] = belay::squared_error(step, y.out(), matrix{wanted.data(), {2, 4}});
      std::move(y).backward(grad);
      auto outcome = std::move(step).commit(mesh, belay::samples{4});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { std::printf("step %zu  loss %.4f\n", number, mean); });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
      }
    }
  });
}
