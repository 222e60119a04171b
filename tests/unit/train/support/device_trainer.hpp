// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A data-parallel trainer whose batches are made by kernels, so that any world runs it: of the host, of a device that
// is the host's, and of a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"

namespace device_trainer {

using matrix = belay::view<const float, 2>;
inline constexpr std::size_t rows = 4, width = 6, hidden = 9, steps = 3;

struct batch_of {
  float* x;
  std::size_t number;
  BELAY_HD void operator()(std::size_t i) const {
    x[i] = 0.125F * static_cast<float>((i * (number % 5 + 1) + number) % 13) - 0.75F;
  }
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

template <class T>
struct bent {
  belay::parameter<T> weight;
  std::size_t out;

  bent(const char* name, std::size_t from, std::size_t to) : weight(name, {from, to}), out(to) {}
  void for_each_parameter(auto&& visit) { visit(weight); }

  struct residue {
    belay::view<float, 2> out;
    matrix x;
    belay::view<float, 2> z;
  };
  residue forward(auto& frame, matrix x) const {
    const residue r{belay::keep<float>(frame, {x.extent(0), out}), x, belay::keep<float>(frame, {x.extent(0), out})};
    const auto w = frame.read(weight);
    frame.product(r.z, x, belay::view<const T, 2>{w.data(), {x.extent(1), out}});
    frame.each(r.z.size(), curve{r.z.data(), r.out.data()});
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    const auto w = frame.read(weight);
    auto dz = belay::scratch<float>(frame, dy.shape());
    frame.each(dy.size(), slope{r.z.data(), dy.data(), dz.data()});
    frame.product(frame.add_to(weight), belay::transposed(r.x), dz);
    frame.product(dx, dz, belay::transposed(belay::view<const T, 2>{w.data(), {r.x.extent(1), out}}));
  }
};
template <class T>
struct network {
  bent<T> first{"first", width, hidden}, last{"last", hidden, width};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(last.weight); }
};

struct result {
  std::vector<double> losses, norms;
  std::function<void()> step_ended = [] {};
  bool operator==(const result& other) const { return losses == other.losses && norms == other.norms; }
};

template <int Stage, class T>
auto body(result& out) {
  return [&out](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network<T> net;
    belay::parameter_store store{
        run, mesh, net, belay::zero<Stage>{}, belay::precision<T>{}, {.seed = 3, .bucket_bytes = 128}};
    belay::gathers first{net.first, store}, last{net.last, store};
    belay::adamw optimizer{store};
    const std::span<float> memory = run.template lease<float>(belay::tier::device, 4 * rows * width, "batches");
    for (auto number : run.steps(steps)) {
      belay::step step{run.engine(), store};
      step.micro_batches(2);
      for (std::size_t m = 0; m < 2; ++m) {
        const auto scope = step.micro_batch(m);
        float* const x = memory.data() + m * 2 * rows * width;
        run.engine().kit().each(2 * rows * width,
                                batch_of{x, 7 * number + 2 * static_cast<std::size_t>(rank.number()) + m});
        auto h = belay::forward(scope, first, belay::constant(matrix{x, {rows, width}}));
        auto y = belay::forward(scope, last, h.out());
        auto [loss, grad] = belay::squared_error(scope, matrix(y.out()), matrix{x + rows * width, {rows, width}});
        std::move(h).backward(std::move(y).backward(grad));
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{2 * rows * static_cast<std::size_t>(rank.size())});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) {
        out.losses.push_back(end.mean_loss());
        out.norms.push_back(end.norm);
        out.step_ended();
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 0.5});
    }
  };
}

}  // namespace device_trainer
