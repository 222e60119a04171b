// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A model of parameters that are cut over experts, the tensor axis and both, of shapes drawn from a seed, and a body
// that trains, saves and loads it. Its gradients are whole numbers, so that no order of additions changes a bit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"

namespace boxed_bench {

using belay::axes;
using belay::axis;
using belay::placed;
using belay::shard;

using of_experts = shard<0, axis::expert>;
using box = placed<of_experts, shard<1, axis::tensor>>;
using inner_box = placed<shard<2, axis::expert>, shard<0, axis::tensor>>;
using cut_twice = placed<shard<1, axis::tensor>, shard<1, axis::expert>>;

// Extents of 0 to 7, of which 0 is rare.
class drawn {
 public:
  explicit drawn(std::uint64_t seed) : state_(seed * 2654435761U + 1) {}
  std::size_t extent() { return next() % 16 == 0 ? 0 : 1 + next() % 7; }
  belay::parameter_shape matrix() { return {extent(), extent()}; }
  belay::parameter_shape cube() { return {extent(), extent(), extent()}; }
  std::size_t below(std::size_t end) { return next() % end; }

 private:
  std::size_t next() {
    return static_cast<std::size_t>((state_ = state_ * 6364136223846793005U + 1442695040888963407U) >> 33);
  }
  std::uint64_t state_;
};

// The element of the whole parameter that each local element is.
template <class Parameter>
std::vector<std::uint32_t> places_of(const Parameter& parameter) {
  std::vector<std::uint32_t> out(parameter.local_size());
  parameter.each_run([&](std::size_t global, std::size_t local, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[local + i] = static_cast<std::uint32_t>(global + i);
  });
  return out;
}

// A layer whose loss is nothing, and whose gradients depend on the place in the whole parameter alone.
template <class T>
struct layer {
  static belay::parameter_spec spec(const char* name, belay::parameter_shape shape) {
    return {name, shape, belay::initial::normal(1)};
  }

  drawn shapes;
  float experts;  // ranks of the expert axis: what is cut over it hears of the samples of all of them
  belay::parameter<T, box> up;
  belay::parameter<T, inner_box> down;
  belay::parameter<T, cut_twice> twice;
  belay::parameter<T, of_experts> stack;
  belay::parameter<T, shard<1, axis::tensor>> columns;
  belay::parameter<T, shard<0, axis::tensor>> rows;
  belay::parameter<T> dense;
  belay::parameter<T, box, belay::frozen> base;
  std::vector<std::vector<std::uint32_t>> places;
  std::vector<std::vector<T>> seen;  // of each parameter, in the last forward

  template <class Mesh>
  layer(const Mesh& mesh, std::uint64_t seed)
      : shapes(seed),
        experts(static_cast<float>(mesh.shape().expert)),
        up(spec("up", shapes.cube()), mesh),
        down(spec("down", shapes.cube()), mesh),
        twice(spec("twice", shapes.cube()), mesh),
        stack(spec("stack", shapes.cube()), mesh),
        columns(spec("columns", shapes.matrix()), mesh),
        rows(spec("rows", shapes.matrix()), mesh),
        dense(spec("dense", {5, 3})),
        base(spec("base", shapes.cube()), mesh) {
    for_each_parameter([&](auto& each) {
      places.push_back(places_of(each));
      seen.emplace_back(each.local_size());
    });
  }
  void for_each_parameter(auto&& visit) {
    visit(up), visit(down), visit(twice), visit(stack), visit(columns), visit(rows), visit(dense), visit(base);
  }

  struct residue {
    belay::view<float, 2> out;
  };
  residue forward(auto& frame, belay::view<const float, 2> x) {
    auto y = frame.template keep<float>(x.shape());
    frame.run([=] { std::copy_n(x.data(), x.size(), y.data()); });
    std::size_t number = 0;
    for_each_parameter([&](auto& parameter) {
      const auto values = frame.read(parameter);
      frame.run(
          [from = values.data(), count = values.size(), to = seen[number++].data()] { std::copy_n(from, count, to); });
    });
    return {y};
  }
  void backward(auto& frame, residue&&, belay::view<const float, 2> dy, belay::view<float, 2> dx) {
    frame.run([=] { std::copy_n(dy.data(), dy.size(), dx.data()); });
    std::size_t number = 0;
    for_each_parameter([&]<class Parameter>(Parameter& parameter) {
      const std::vector<std::uint32_t>& place = places[number++];
      if constexpr (belay::has_gradient<typename Parameter::learning_type>) {
        const float heard = belay::sharded_over<axis::expert>(parameter) ? experts : 1;
        auto* const gradient = frame.add_to(parameter).data();
        frame.run([=, first = place.data(), count = place.size()] {
          for (std::size_t i = 0; i < count; ++i) gradient[i] += heard * static_cast<float>(first[i] % 13 + 1);
        });
      }
    });
  }
};

// All that is kept of each element, by part and tensor, and what the ranks heard of a step.
using whole_state = std::map<std::string, std::vector<float>>;
struct record {
  whole_state state;
  std::vector<double> losses, norms;
};

struct settings {
  axes shape;
  std::uint64_t seed = 1;
  belay::zero_stage zero = belay::zero_stage::none;
  std::string folder = {};
  std::size_t steps = 2;
  belay::resume_from from = belay::resume_from::nothing;
  std::size_t whole_below = 0;
};

inline constexpr std::size_t global_micro_batches = 12;

template <class T>
void run_rank(const settings& with, record& out, std::mutex& lock, auto& rank, auto& run) {
  belay::mesh mesh{rank, with.shape};
  layer<T> net(mesh, with.seed);
  using run_type = std::remove_reference_t<decltype(run)>;
  using store_type = belay::parameter_store<run_type, belay::precision<T>>;
  store_type store{run, mesh, net, with.zero, {.seed = 3, .bucket_bytes = 256, .whole_below = with.whole_below}};
  belay::gathers<layer<T>, store_type> whole{net, store};
  belay::adamw optimizer{store};
  belay::checkpoints saved{run, mesh, {.folder = with.folder, .every = with.steps}};
  saved.add(store, optimizer);
  const auto from = saved.open(with.from);
  const auto samples = global_micro_batches / static_cast<std::size_t>(with.shape.data * with.shape.expert);
  const float x[1] = {1};
  const belay::view<const float, 2> inputs{x, {1, 1}};
  for (const std::size_t number : run.steps(with.steps, from.step)) {
    belay::step step{run.engine(), store, saved};
    step.micro_batches(samples);
    for (std::size_t m = 0; m < samples; ++m) {
      auto hidden = belay::forward(step.micro_batch(m), whole, belay::constant(inputs));
      auto [loss, gradient] = belay::squared_error(step.micro_batch(m), hidden.out(), inputs);
      run.engine().add_loss(2);
      std::move(hidden).backward(gradient);
    }
    auto outcome = std::move(step).commit(mesh, belay::samples{global_micro_batches});
    auto* const ok = belay::committed(outcome);
    if (ok == nullptr) continue;
    run.report(*ok, [&](const belay::step_summary& end) {
      out.losses.push_back(end.mean_loss());
      out.norms.push_back(end.norm);
    });
    optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
    run.engine().compute().synchronize();
    static_cast<void>(saved.after(number));
  }
  saved.close();
  {
    belay::forward_only pass{run.engine()};
    static_cast<void>(belay::observe(pass, whole, belay::constant(inputs)));
  }
  run.engine().compute().synchronize();
  if (run.rehearsing()) return;
  const std::lock_guard held(lock);
  const auto put = [&](std::string_view part, const auto& parameter, std::size_t first, auto values) {
    std::vector<float>& all = out.state[std::string(part) + " " + parameter.name()];
    all.resize(parameter.global_size());
    for (std::size_t i = 0; i < values.size(); ++i) all[first + i] = static_cast<float>(values[i]);
  };
  std::size_t number = 0;
  net.for_each_parameter([&](auto& parameter) {
    const std::span<const T> seen(net.seen[number++]);
    parameter.each_run([&](std::size_t first, std::size_t local, std::size_t count) {
      put("seen", parameter, first, seen.subspan(local, count));
    });
    parameter.each_held([&](std::size_t first, auto values) { put("value", parameter, first, values); });
  });
  optimizer.each_state([&](std::string_view part, const auto& range, auto state_of) {
    const auto& parameter = store.buckets().parameter(range.parameter);
    belay::each_run_of(parameter, range.offset, range.count,
                       [&](std::size_t first, std::size_t in_range, std::size_t count) {
                         put(part, parameter, first, state_of.subspan(in_range, count));
                       });
  });
}

template <class T = float>
record train(const settings& with) {
  record out;
  std::mutex lock;
  belay::launch(belay::host::world{static_cast<int>(with.shape.ranks())},
                [&](auto& rank, auto& run) { run_rank<T>(with, out, lock, rank, run); });
  return out;
}

}  // namespace boxed_bench
