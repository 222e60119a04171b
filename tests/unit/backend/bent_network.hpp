// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A small network that any engine trains: of the host, of a device that is the host's, and of a GPU.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "belay/kernel.hpp"
#include "belay/step.hpp"
#include "belay/train/loss.hpp"

namespace bent_network {

using matrix = belay::view<const float, 2>;
inline constexpr std::size_t rows = 6, width = 8, hidden = 12, steps = 3;

// y = z + z^2 / 8, where z = x w. Both are kept.
struct bent {
  float *weight, *gradient;
  std::size_t in, out;

  struct residue {
    belay::view<float, 2> out;
    matrix x;
    belay::view<float, 2> z;
  };
  struct curve {
    const float* z;
    float* y;
    BELAY_HD void operator()(std::size_t i) const { y[i] = z[i] + z[i] * z[i] / 8; }
  };
  struct slope {
    const float *z, *dy;
    float* dz;
    BELAY_HD void operator()(std::size_t i) const { dz[i] = dy[i] * (1 + z[i] / 4); }
  };

  [[nodiscard]] static const char* name() { return "bent"; }
  residue forward(auto& frame, matrix x) const {
    const residue r{belay::keep<float>(frame, {x.extent(0), out}), x, belay::keep<float>(frame, {x.extent(0), out})};
    frame.product(r.z, x, matrix{weight, {in, out}});
    frame.each(r.z.size(), curve{r.z.data(), r.out.data()});
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) const {
    auto dz = belay::scratch<float>(frame, dy.shape());
    frame.each(dy.size(), slope{r.z.data(), dy.data(), dz.data()});
    frame.product(belay::adding_to(belay::view<float, 2>{gradient, {in, out}}), belay::transposed(r.x), dz);
    frame.product(dx, dz, belay::transposed(matrix{weight, {in, out}}));
  }
};

enum class forgets { nothing, batch, result };

// Trains with numbers in `memory`, of which `staged` is the host's side: of each layer weight, gradient and moments,
// then the batch and its targets. Gives the losses and the weights. Calls `step_ended` after each step.
template <class Engine, class Memory, class Staged, class Ended>
std::vector<double> train(Engine& engine, const Memory& memory, const Staged& staged, forgets what, Ended step_ended) {
  const auto at = [](const auto& region, std::size_t k) { return reinterpret_cast<float*>(region.data()) + 128 * k; };
  constexpr std::size_t size = width * hidden, floats = 128;
  bent one{at(memory, 0), at(memory, 1), width, hidden}, two{at(memory, 4), at(memory, 5), hidden, width};
  auto& compute = engine.compute();
  for (std::size_t i = 0; i < 8 * floats; ++i)
    at(staged, 0)[i] = i % 512 < floats ? 0.0625F * static_cast<float>(i % 19) - 0.5F : 0;
  belay::queue_copy(compute, memory.data(), staged.data(), 8 * floats * sizeof(float));
  compute.synchronize();
  std::vector<double> out;
  for (std::size_t s = 1; s <= steps; ++s) {
    belay::step step{engine};
    for (std::size_t i = 0; i < 2 * floats; ++i)
      at(staged, 8)[i] = 0.125F * static_cast<float>((i * (s % 2 + 1) + s % 2) % 13) - 0.75F;
    engine.copies().copy(at(memory, 8), at(staged, 8), 2 * floats * sizeof(float));
    if (const auto copied = engine.copies().record(); what != forgets::batch) engine.copies().let_wait(compute, copied);
    auto first = belay::forward(step, one, belay::constant(matrix{at(memory, 8), {rows, width}}));
    auto second = belay::forward(step, two, first.out());
    auto error = belay::squared_error(step, matrix(second.out()), matrix{at(memory, 9), {rows, width}});
    std::move(first).backward(std::move(second).backward(error.gradient));
    const auto outcome = std::move(step).commit([&](const belay::ballot& own) {
      out.push_back(own.loss);
      return own;
    });
    static_cast<void>(outcome);
    for (std::size_t k : {0U, 4U}) {
      engine.kit().each(
          size, belay::kernel::adamw<float>{at(memory, k), at(memory, k + 1), at(memory, k + 2), at(memory, k + 3),
                                            belay::kernel::adamw_at_step<float>({.learning_rate = 0.02}, s)});
      engine.kit().each(size, belay::kernel::fill<float>{at(memory, k + 1), 0});
    }
    step_ended();
  }
  if (const auto updated = compute.record(); what != forgets::result) engine.copies().wait(updated);
  engine.copies().copy(staged.data(), memory.data(), 8 * floats * sizeof(float));
  engine.copies().synchronize();
  for (std::size_t k : {0U, 4U}) out.insert(out.end(), at(staged, k), at(staged, k) + size);
  compute.synchronize();
  return out;
}

}  // namespace bent_network
