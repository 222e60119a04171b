// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer of 09_on_a_gpu: three layers, one of them with kernels of its own. Nothing in it knows where it runs.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <utility>

#include "belay/belay.hpp"

namespace on_a_gpu {

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
};

// Kernels are named structs; BELAY_HD marks what nvcc compiles for a device too.
struct rectified {
  const float* x;
  float* y;
  BELAY_HD void operator()(std::size_t i) const { y[i] = x[i] > 0 ? x[i] : 0; }
};
struct rectified_backward {
  const float *x, *dy;
  float* dx;
  BELAY_HD void operator()(std::size_t i) const { dx[i] = x[i] > 0 ? dy[i] : 0; }
};

struct relu {
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };

  residue forward(auto& frame, matrix x) {
    residue r{belay::keep<float>(frame, x.shape()), x};
    frame.each(x.size(), rectified{x.data(), r.out.data()});
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    frame.each(dy.size(), rectified_backward{r.x.data(), dy.data(), dx.data()});
  }
};

struct network {
  linear first{{"first.weight", {32, 16}}}, second{{"second.weight", {4, 32}}};
  relu bend;
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

void forward_and_backward(const auto& scope, network& net, matrix x, matrix targets) {
  auto h = belay::forward(scope, net.first, belay::constant(x));
  auto b = belay::forward(scope, net.bend, h.out());
  auto y = belay::forward(scope, net.second, b.out());
  auto [loss, grad] = belay::squared_error(scope, y.out(), targets);
  grad = std::move(y).backward(grad);
  grad = std::move(b).backward(grad);
  std::move(h).backward(grad);
}

// Calls `see(number, mean)` on rank 0 after each step.
template <class Run>
void train(auto& rank, Run& run, std::size_t steps, auto see) {
  belay::mesh mesh{rank, {.data = rank.size()}};
  network net;
  belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
  belay::adamw optimizer{store};
  // What the host writes and kernels read: on both sides, with a copy between them.
  belay::staged<float, Run> batch(run, 32 * 16, "batch"), targets(run, 32 * 4, "targets");
  for (auto number : run.steps(steps)) {
    const auto sample = [&](std::size_t i) { return std::sin(float(i * (number + std::size_t(rank.number())))); };
    batch.write([&](std::span<float> x) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = sample(i);
    });
    targets.write([&](std::span<float> y) {
      for (std::size_t i = 0; i < y.size(); ++i) y[i] = sample(i / 4 * 16 + i % 4) + sample(i / 4 * 16 + 5);
    });
    belay::step step{run.engine(), store};
    forward_and_backward(step, net, {batch.data(), {32, 16}}, {targets.data(), {32, 4}});
    auto outcome = std::move(step).commit(mesh, belay::samples{32 * std::size_t(rank.size())});
    if (auto* ok = belay::committed(outcome)) {
      run.report(*ok, [&](double mean) { see(number, mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
    }
  }
}

inline void print(std::size_t number, double mean) {
  if (number % 10 == 0) std::printf("step %zu  loss %.4f\n", number, mean);
}

}  // namespace on_a_gpu
