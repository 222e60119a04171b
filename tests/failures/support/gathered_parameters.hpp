// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two layers whose parameters are gathered for their calls, trained on any world: what is whole after a step, and what
// memory is left.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "belay/comm/mesh.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/step/recompute.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "failures/support/batches.hpp"

namespace gathered_parameters {

using namespace failures;

// The wrong one: it gives back when as many backwards as forwards have run, and forgets the count in every step.
template <class Layer, class Store>
class gathers_by_counter {
 public:
  gathers_by_counter(Layer& layer, Store& store) : layer_(&layer), store_(&store), number_(store.gathers_for(layer)) {}

  void begin_step() noexcept { owed_ = 0; }
  [[nodiscard]] auto forward(auto& call, const auto& input) {
    if (owed_++ == 0) store_->hold(number_, call.engine(), call.call().at);
    return layer_->forward(call, input);
  }
  template <class Frame, class Residue, class Dout, class... Dx>
  requires requires(Layer& layer, Frame& call, Residue&& residue, const Dout& dout, const Dx&... dx) {
    layer.backward(call, std::move(residue), dout, dx...);
  }
  void backward(Frame& call, Residue&& residue, const Dout& dout, const Dx&... dx) {
    layer_->backward(call, std::move(residue), dout, dx...);
    if (--owed_ == 0) store_->give_back(number_);
  }

 private:
  Layer* layer_;
  Store* store_;
  std::uint32_t number_;
  std::size_t owed_ = 0;
};

enum class how : std::uint8_t { plain_and_observed, recomputed, two_in_flight };

struct found {
  std::size_t after_use = 0;   // bytes of whole parameters after the last backward of a step: the most of all steps
  std::size_t other_live = 0;  // steps that left a tier otherwise than the first
  bool as_planned = true;      // of rank 0
};

// Trained for `steps` steps as `what` says. `Gathers` is what gives layers their parameters.
template <template <class, class> class Gathers, class Launch>
found train(const Launch& launch, how what, std::size_t steps, belay::tier parameters = belay::tier::device) {
  found out;
  launch([&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    two_layers net(9);
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, belay::store_options{.parameters = parameters}};
    Gathers<layer, decltype(store)> first{net.first, store}, second{net.last, store};
    belay::recompute again{first};
    belay::adamw optimizer{store};
    std::array<std::size_t, belay::tier_count> live{};
    const batches batch(run, 2);
    for (auto number : run.steps(steps)) {
      if constexpr (requires { first.begin_step(); }) first.begin_step(), second.begin_step();
      belay::step step{run.engine(), store};
      step.micro_batches(what == how::two_in_flight ? 2 : 1);
      const auto one = [&](const auto& scope, auto& lower) {
        auto h = belay::forward(scope, lower, belay::constant(batch.inputs()));
        if (what == how::plain_and_observed) static_cast<void>(belay::observe(scope, first, batch.inputs()));
        auto y = belay::forward(scope, second, h.out());
        auto [loss, grad] = belay::squared_error(scope, matrix(y.out()), batch.targets());
        grad = std::move(y).backward(grad);
        std::move(h).backward(grad);
      };
      if (what == how::recomputed) {
        one(step.micro_batch(0), again);
      } else if (what == how::plain_and_observed) {
        one(step.micro_batch(0), first);
      } else {
        auto h = belay::forward(step.micro_batch(0), first, belay::constant(batch.inputs()));
        auto g = belay::forward(step.micro_batch(1), first, belay::constant(batch.inputs(1)));
        auto y = belay::forward(step.micro_batch(0), second, h.out());
        auto z = belay::forward(step.micro_batch(1), second, g.out());
        auto [loss, dy] = belay::squared_error(step.micro_batch(0), matrix(y.out()), batch.targets());
        auto [more, dz] = belay::squared_error(step.micro_batch(1), matrix(z.out()), batch.targets(1));
        dz = std::move(z).backward(dz);  // in reverse order
        std::move(g).backward(dz);
        dy = std::move(y).backward(dy);
        std::move(h).backward(dy);
      }
      if (!run.rehearsing() && rank.number() == 0) out.after_use = std::max(out.after_use, store.gathered_bytes());
      auto outcome = std::move(step).commit(mesh, belay::samples{rows});
      if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
      if (run.rehearsing() || rank.number() != 0) continue;
      run.engine().compute().synchronize();
      std::array<std::size_t, belay::tier_count> now{};
      for (std::size_t t = 0; t < now.size(); ++t) now[t] = run.meters()[static_cast<belay::tier>(t)].live_bytes();
      if (number == 1) live = now;
      out.other_live += now == live ? 0 : 1;
      if (run.meters()[belay::tier::device].peak_bytes() != run.planned().peak_bytes(belay::tier::device))
        out.as_planned = false;
    }
  });
  return out;
}

struct bad_batch {};
enum class thrown : std::uint8_t { between_calls, in_forward, in_backward };

// Throws on all ranks where it is told to.
struct failing : layer {
  using layer::layer;
  thrown where = thrown::between_calls;
  bool fails = false;
  residue forward(auto& frame, matrix x) {
    if (fails && where == thrown::in_forward) throw bad_batch{};
    return layer::forward(frame, x);
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    if (fails && where == thrown::in_backward) throw bad_batch{};
    layer::backward(frame, std::move(r), dy, dx);
  }
};
struct failing_layers {
  layer first{"first", width, 9};
  failing second{"second", 9, width};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

// What `expect(condition)` is told: an exception in the second of four steps leaves nothing gathered behind.
template <class Launch, class Expect>
void throw_in_a_step(const Launch& launch, belay::gather_by gathers, thrown where, const Expect& expect) {
  launch([&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    failing_layers net;
    net.second.where = where;
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, {.gathers = gathers}};
    belay::gathers first{net.first, store};
    belay::gathers second{net.second, store};
    belay::adamw optimizer{store};
    const batches batch(run, 1);
    std::size_t peak = 0;
    for (auto number : run.steps(4)) {
      net.second.fails = !run.rehearsing() && number == 2;
      try {
        belay::step step{run.engine(), store};
        if (!run.rehearsing()) expect(store.gathered_bytes() == store.bytes_of(0));  // the first one's, started
        auto h = belay::forward(step, first, belay::constant(batch.inputs()));
        if (net.second.fails && where == thrown::between_calls) throw bad_batch{};
        auto y = belay::forward(step, second, h.out());
        auto [loss, grad] = belay::squared_error(step, matrix(y.out()), batch.targets());
        grad = std::move(y).backward(grad);
        std::move(h).backward(grad);
        auto outcome = std::move(step).commit(mesh, belay::samples{rows});
        if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
      } catch (const bad_batch&) {
        expect(store.take_gathered().missed == 0);
        continue;
      }
      if (run.rehearsing()) continue;
      expect(store.gathered_bytes() == 0);
      const belay::gather_counts counts = store.take_gathered();
      expect(counts.prefetched == 4);
      expect(counts.missed + counts.in_order == 0);
      if (number == 1) peak = counts.peak_bytes;
      expect(counts.peak_bytes == peak);
      expect(run.meters()[belay::tier::device].peak_bytes() == run.planned().peak_bytes(belay::tier::device));
    }
  });
}

}  // namespace gathered_parameters
