// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A model of four times a rank's budget, three quarters of it frozen, trained on any world: its parameters are born
// divided, and what it needs is known before anything is allocated.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/hash.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/step/handle_store.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"

namespace frozen_base_model {

/// How large it is, and on how many ranks.
struct sizes {
  std::size_t width = 128, ranks = 16;
  std::size_t frozen_layers = 48, trained_layers = 16, steps = 3;
  [[nodiscard]] constexpr std::size_t layer_bytes() const { return width * width * sizeof(float); }
  [[nodiscard]] constexpr std::size_t model_bytes() const { return (frozen_layers + trained_layers) * layer_bytes(); }
};
inline constexpr std::size_t rows = 1;

using matrix = belay::view<const float, 2>;

struct added {
  const float* x;
  float* y;
  BELAY_HD void operator()(std::size_t i) const { y[i] += x[i]; }
};
struct constant {
  float* x;
  float value;
  BELAY_HD void operator()(std::size_t i) const { x[i] = value; }
};

// y = x + w x, so that many of them stay of one size.
template <class Learning>
struct block {
  belay::parameter<float, belay::replicate, Learning> weight;
  block(std::size_t number, std::size_t width)
      : weight({"block." + std::to_string(number), {width, width}, belay::initial::normal(0.01)}) {}
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };
  residue forward(auto& frame, matrix x) {
    auto y = frame.template keep<float>(x.shape());
    frame.product(y, x, transposed(frame.read(weight)));
    frame.each(y.size(), added{x.data(), y.data()});
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    if constexpr (belay::has_gradient<Learning>) frame.product(frame.add_to(weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(weight));
    frame.each(dx.size(), added{dy.data(), dx.data()});
  }
  void for_each_parameter(auto&& visit) { visit(weight); }
};

struct model {
  std::deque<block<belay::frozen>> base;
  std::deque<block<belay::trainable>> top;
  explicit model(const sizes& of) {
    for (std::size_t i = 0; i < of.frozen_layers; ++i) base.emplace_back(i, of.width);
    for (std::size_t i = 0; i < of.trained_layers; ++i) top.emplace_back(of.frozen_layers + i, of.width);
  }
  void for_each_parameter(auto&& visit) {
    for (auto& one : base) visit(one.weight);
    for (auto& one : top) visit(one.weight);
  }
};

struct found {
  std::size_t peak_at_start = 0, peak = 0, planned = 0;  // the most of any rank
  std::vector<double> losses;
  bool frozen_changed = false, trained_changed = false;
  std::atomic<int> bodies = 0;  // that ran
};

// A hash of the layers' parameters, whole. Collective where ranks do not reach each other's shards.
template <class Store>
std::uint64_t hash_of(Store& store, auto& layers, bool rehearsing) {
  belay::content_hash hash;
  for (auto& one : layers) {
    const auto whole = store.read(one.weight);
    if (!rehearsing) hash.add_bytes(whole.values().data(), whole.values().size_bytes());
  }
  return hash.value();
}

// What frozen layers give, the last one's alone.
auto observe_all(const auto& step, auto& base, matrix x) {
  auto lower = belay::observe(step, base[0], x);
  for (std::size_t i = 1; i < base.size(); ++i) lower = belay::observe(step, base[i], lower.out());
  return lower;
}

// The rest of a step after its frozen layers. (Handles live in functions of their own, without loops around them.)
auto train_top(const auto& step, auto& top, const auto& lower, matrix target) {
  belay::handle_store<decltype(belay::forward(step, top[0], lower.out()))> handles{top.size()};
  handles.keep(0, belay::forward(step, top[0], lower.out()));
  for (std::size_t i = 1; i < top.size(); ++i) handles.keep(i, belay::forward(step, top[i], handles.at(i - 1).out()));
  auto [loss, grad] = belay::squared_error(step, matrix(handles.at(top.size() - 1).out()), target);
  for (std::size_t i = top.size(); i-- > 0;) grad = handles.take(i).backward(grad);
}

auto train_once(auto& run, auto& store, const auto& mesh, auto& base, auto& top, const sizes& of, matrix x,
                matrix target) {
  belay::step step{run.engine(), store};
  const auto lower = observe_all(step, base, x);
  train_top(step, top, lower, target);
  return std::move(step).commit(mesh, belay::samples{of.ranks * rows});
}

// Ranks of `launch` have `budget` bytes of their device each; `stage` divides what is trained and what is not.
template <int Stage, class Launch>
void train(const Launch& launch, const sizes& of, found& out, std::size_t budget) {
  std::mutex lock;
  const auto body = [&](auto& rank, auto& run) {
    if (!run.rehearsing()) ++out.bodies;
    belay::mesh mesh{rank, {.data = rank.size()}};
    model net(of);
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{},
                                 belay::store_options{.bucket_bytes = of.layer_bytes()}};
    std::deque<belay::gathers<block<belay::frozen>, decltype(store)>> base;
    for (auto& one : net.base) base.emplace_back(one, store);
    std::deque<belay::gathers<block<belay::trainable>, decltype(store)>> top;
    for (auto& one : net.top) top.emplace_back(one, store);
    belay::adamw optimizer{store};
    const auto& meter = run.meters()[belay::tier::device];
    const std::size_t at_start = meter.peak_bytes();
    const std::uint64_t frozen = hash_of(store, net.base, run.rehearsing());
    const std::uint64_t trained = hash_of(store, net.top, run.rehearsing());
    const auto batch = run.template lease<float>(belay::tier::device, 2 * rows * of.width, "batch");
    const matrix x{batch.data(), {rows, of.width}}, target{batch.data() + x.size(), {rows, of.width}};
    run.engine().kit().each(x.size(), constant{batch.data(), 1.0F});
    run.engine().kit().each(x.size(), constant{batch.data() + x.size(), 0.5F});
    for ([[maybe_unused]] auto number : run.steps(of.steps)) {
      auto outcome = train_once(run, store, mesh, base, top, of, x, target);
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { out.losses.push_back(mean); });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
      }
    }
    run.engine().compute().synchronize();
    const std::size_t peak = meter.peak_bytes();
    const bool other_frozen = hash_of(store, net.base, run.rehearsing()) != frozen;
    const bool other_trained = hash_of(store, net.top, run.rehearsing()) != trained;
    if (run.rehearsing()) return;
    const std::lock_guard guard(lock);
    out.peak_at_start = std::max(out.peak_at_start, at_start);
    out.peak = std::max(out.peak, peak);
    out.planned = std::max(out.planned, run.planned().peak_bytes(belay::tier::device));
    out.frozen_changed = out.frozen_changed || other_frozen;
    out.trained_changed = out.trained_changed || other_trained;
  };
  belay::launch_options options;
  options.budget[belay::tier::device] = budget;
  launch(body, options);
}

}  // namespace frozen_base_model
