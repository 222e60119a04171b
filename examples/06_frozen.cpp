// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A small part is trained on a frozen base. The layer is written once: whether it is trained is in the type of its
// parameter. The base has no gradients, no optimizer state and no backward; its parameters are divided among the ranks
// with the others, and whole only while their layer runs.
//   examples/run 06_frozen [STEPS]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {
constexpr std::size_t width = 128, rows = 32, base_depth = 12, top_depth = 2;
using input = belay::view<const float, 2>;

// y = x + w x
template <class Learning>
struct block {
  belay::parameter<float, belay::replicate, Learning> weight;
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
    frame.run([=] {
      for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] += x.data()[i];
    });
    return {y, x};
  }
  void backward(auto& frame, residue&& r, input dy, belay::view<float, 2> dx) {
    if constexpr (belay::has_gradient<Learning>) frame.product(frame.add_to(weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(weight));
    frame.run([=] {
      for (std::size_t i = 0; i < dx.size(); ++i) dx.data()[i] += dy.data()[i];
    });
  }
};

struct network {
  std::vector<block<belay::frozen>> base;
  std::vector<block<belay::trainable>> top;
  network() {
    base.reserve(base_depth), top.reserve(top_depth);
    for (std::size_t i = 0; i < base_depth; ++i) base.emplace_back(i);
    for (std::size_t i = 0; i < top_depth; ++i) top.emplace_back(base_depth + i);
  }
  void for_each_parameter(auto&& visit) {
    for (auto& one : base) visit(one.weight);
    for (auto& one : top) visit(one.weight);
  }
};

void train(belay::rank& rank, belay::run& run, std::size_t steps) {
  belay::mesh mesh{rank, {.data = rank.size()}};
  network net;
  belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
  std::vector<belay::gathers<block<belay::frozen>, decltype(store)>> base;
  for (auto& one : net.base) base.emplace_back(one, store);
  belay::gathers first{net.top[0], store}, second{net.top[1], store};
  belay::adamw optimizer{store};
  std::vector<float> x(rows * width), wanted(rows * width);
  for (auto number : run.steps(steps)) {
    belay::step step{run.engine(), store};
    run.engine().run_on_host([&] {
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>((i * 7 + number * 5 + static_cast<std::size_t>(rank.number())) % 17) / 17;
        wanted[i] = 1 - x[i];
      }
    });
    // Below the lowest layer that is trained nothing owes a backward.
    auto lower = belay::observe(step, base[0], input{x.data(), {rows, width}});
    for (std::size_t i = 1; i < base_depth; ++i) lower = belay::observe(step, base[i], lower.out());
    auto h = belay::forward(step, first, belay::constant(lower.out()));
    auto y = belay::forward(step, second, h.out());
    auto [loss, grad] = belay::squared_error(step, y.out(), input{wanted.data(), {rows, width}});
    grad = std::move(y).backward(grad);
    std::move(h).backward(grad);
    auto outcome = std::move(step).commit(mesh, belay::samples{rows * static_cast<std::size_t>(rank.size())});
    if (auto* ok = belay::committed(outcome)) {
      run.report(*ok, [&](double mean) { std::printf("step %zu  loss %.4f\n", number, mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
    }
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 20;
  if (steps == 0) return std::fprintf(stderr, "06_frozen [STEPS]: at least one step\n"), 2;
  const auto body = [&](belay::rank& rank, belay::run& run) { train(rank, run, steps); };
  const belay::launch_options how{.explain_faults = belay::fault_explanation::by_handler};
  std::printf("%s", belay::rehearse(4, body, how).text().c_str());
  belay::launch(belay::host::world{4}, body, how);
} catch (const std::exception& error) {
  std::fprintf(stderr, "06_frozen: %s\n", belay::printable_what(error).c_str());
  return 1;
}
