// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// SGD in ten lines: an optimizer of one's own on ranks that divide what it works on. The store calls it for each range
// that a rank owns, and gathers the new values; so its state, too, is that of those ranges alone. Four ranks train
// three times, with ZeRO 1, 2 and 3, and end with the same loss to the last digit.
//   examples/run 13_own_optimizer
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {
using matrix = belay::view<const float, 2>;

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
    frame.product(frame.add_to(weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(weight));
  }
  void for_each_parameter(auto&& visit) { visit(weight); }
};

struct network {
  linear first{{"first.weight", {32, 16}}}, second{{"second.weight", {16, 32}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

struct sgd {
  std::map<std::string, std::vector<float>> momentum;
  void operator()(const std::string& name, std::span<float> values, std::span<const float> gradients,
                  std::size_t first) {
    std::vector<float>& m = momentum[name];  // by element of the parameter: `values` begin at `first`
    m.resize(std::max(m.size(), first + values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      m[first + i] = 0.9F * m[first + i] + gradients[i];
      values[i] -= 1e-2F * m[first + i];
    }
  }
};

void train(belay::rank& rank, belay::run& run, belay::zero_stage divided) {
  belay::mesh mesh{rank, {.data = rank.size()}};
  network net;
  belay::parameter_store store{run, mesh, net, divided};
  belay::gathers first{net.first, store}, second{net.second, store};
  sgd optimizer;
  std::vector<float> batch(8 * 16);
  for (auto number : run.steps(30)) {
    for (std::size_t i = 0; i < batch.size(); ++i)
      batch[i] = static_cast<float>(std::sin(static_cast<double>(i * (static_cast<std::size_t>(rank.number()) + 1))));
    const matrix x{batch.data(), {8, 16}};
    belay::step step{run.engine(), store};
    auto h = belay::forward(step, first, belay::constant(x));
    auto y = belay::forward(step, second, h.out());
    auto [loss, grad] = belay::squared_error(step, y.out(), x);
    grad = std::move(y).backward(grad);
    std::move(h).backward(grad);
    auto outcome = std::move(step).commit(mesh, belay::samples{8 * static_cast<std::size_t>(rank.size())});
    if (auto* ok = belay::committed(outcome)) {
      if (number % 10 == 0)
        run.report(*ok, [&](double mean) {
          std::printf("zero<%d>  step %zu  loss %.9g\n", static_cast<int>(divided), number, mean);
        });
      store.update(std::move(*ok), optimizer);
    }
  }
}
}  // namespace

int main() try {
  for (const auto divided :
       {belay::zero_stage::optimizer_state, belay::zero_stage::gradients, belay::zero_stage::parameters})
    belay::launch(belay::host::world{4}, [divided](belay::rank& rank, belay::run& run) { train(rank, run, divided); },
                  {.explain_faults = belay::fault_explanation::by_handler});
} catch (const std::exception& error) {
  std::fprintf(stderr, "13_own_optimizer: %s\n", belay::printable_what(error).c_str());
  return 1;
}
