// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A network of two layers, and a body that trains it as a user would write it.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "belay/comm/mesh.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"

namespace network_bench {

using matrix = belay::view<const float, 2>;

struct linear {
  belay::parameter<float> weight;
  bool silent = false;  // the wrong layer: its backward forgets the weight
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };

  [[nodiscard]] static const char* name() { return "linear"; }

  residue forward(auto& frame, matrix x) {
    auto y = frame.template keep<float>(belay::extents<2>{x.extent(0), weight.extent(0)});
    const matrix w = frame.read(weight);
    frame.run([=] {
      for (std::size_t i = 0; i < y.extent(0); ++i)
        for (std::size_t o = 0; o < w.extent(0); ++o) {
          y(i, o) = 0;
          for (std::size_t k = 0; k < w.extent(1); ++k) y(i, o) += x(i, k) * w(o, k);
        }
    });
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    const matrix w = frame.read(weight), x = r.x;
    frame.run([=] {
      for (std::size_t i = 0; i < dx.size(); ++i) dx.data()[i] = 0;
      for (std::size_t i = 0; i < dy.extent(0); ++i)
        for (std::size_t o = 0; o < w.extent(0); ++o)
          for (std::size_t k = 0; k < w.extent(1); ++k) dx(i, k) += dy(i, o) * w(o, k);
    });
    if (silent) return;
    const belay::view<float, 2> dw = frame.add_to(weight);
    static_cast<void>(frame.add_to(weight));  // contributes once, however often it is asked for
    frame.run([=] {
      for (std::size_t i = 0; i < dy.extent(0); ++i)
        for (std::size_t o = 0; o < dw.extent(0); ++o)
          for (std::size_t k = 0; k < dw.extent(1); ++k) dw(o, k) += dy(i, o) * x(i, k);
    });
  }
};

struct network {
  linear first{{"first.weight", {12, 7}}}, second{{"second.weight", {3, 12}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

// Row `i` of sample batch `step`; the same on all ranks.
inline constexpr std::size_t rows = 2, columns = 7, outputs = 3;
struct data {
  float x[rows * columns], target[rows * outputs];
  data(std::size_t step, std::size_t micro_batch) {
    std::size_t state = step * 977 + micro_batch * 131 + 5;
    const auto next = [&] {
      return static_cast<float>((state = state * 1103515245 + 12345) / 65536 % 2001) / 1000 - 1;
    };
    for (float& one : x) one = next();
    for (std::size_t i = 0; i < rows * outputs; ++i) target[i] = x[i / outputs * columns + i % outputs] * 0.5F;
  }
  [[nodiscard]] matrix inputs() const { return {x, {rows, columns}}; }
  [[nodiscard]] matrix targets() const { return {target, {rows, outputs}}; }
};

// One micro-batch forward and backward.
void pass(const auto& scope, network& net, const data& batch) {
  auto h = belay::forward(scope, net.first, belay::constant(batch.inputs()));
  auto y = belay::forward(scope, net.second, h.out());
  auto [loss, grad] = belay::squared_error(scope, y.out(), batch.targets());
  grad = std::move(y).backward(grad);
  std::move(h).backward(grad);
}

inline constexpr std::size_t global_micro_batches = 6;

// What rank 0 has after training `steps` steps on a batch of 6 micro-batches that the ranks divide.
struct trained {
  std::vector<double> losses, norms;
  std::vector<float> values;
};

template <int Stage>
auto training_body(std::size_t steps, trained& out, double clip = 1e30) {
  return [steps, &out, clip](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{},
                                 belay::store_options{.seed = 3, .bucket_bytes = 128}};
    belay::adamw optimizer{store};
    const auto mine = belay::even_part(global_micro_batches, static_cast<std::size_t>(rank.size()),
                                       static_cast<std::size_t>(rank.number()));
    std::vector<data> batches;  // queued kernels read them until the commit
    batches.reserve(mine.count);
    for (auto number : run.steps(steps)) {
      belay::step step{run.engine(), store};
      step.micro_batches(mine.count);
      batches.clear();
      for (std::size_t m = 0; m < mine.count; ++m) batches.emplace_back(number, mine.first + m);
      for (std::size_t m = 0; m < mine.count; ++m) pass(step.micro_batch(m), net, batches[m]);
      auto outcome = std::move(step).commit(mesh, belay::samples{global_micro_batches * rows});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](const belay::step_summary& end) {
          out.losses.push_back(end.mean_loss());
          out.norms.push_back(end.norm);
        });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = clip});
      }
    }
    if (!run.rehearsing()) {
      run.engine().compute().synchronize();  // the last update, and the gathers behind it
      if (rank.number() != 0) return;
      for (const auto* layer : {&net.first, &net.second}) {
        const auto values = layer->weight.values();
        out.values.insert(out.values.end(), values.data(), values.data() + values.size());
      }
    }
  };
}

}  // namespace network_bench
