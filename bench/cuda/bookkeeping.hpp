// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a step costs the host beside what it asks of the device, where its micro-batches and its update are launches of
// graphs: a trainer of many layers over an Api that tells how long copies, launches of graphs and waits took.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/step_graphs.hpp"
#include "belay/train/store.hpp"

namespace bench {

/// Nanoseconds.
struct host_clock {
  [[nodiscard]] std::int64_t operator()() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

/// Any Api; the time of calls that are no bookkeeping is counted. Of one rank, whose thread makes them all.
template <class Api, class Clock = host_clock>
class timed_calls : public Api {
 public:
  using typename Api::event_type;
  using typename Api::graph_type;
  using typename Api::status_type;
  using typename Api::stream_type;

  template <class... Arguments>
  explicit timed_calls(Clock clock, Arguments&&... of) : Api(std::forward<Arguments>(of)...), clock_(clock) {}

  [[nodiscard]] status_type copy(stream_type on, void* to, const void* from, std::size_t bytes) {
    const timer here(*this);
    return Api::copy(on, to, from, bytes);
  }
  [[nodiscard]] status_type launch(graph_type which, stream_type on) {
    const timer here(*this);
    return Api::launch(which, on);
  }
  [[nodiscard]] status_type await(event_type which, std::chrono::nanoseconds at_most, bool& reached) {
    const timer here(*this);
    return Api::await(which, at_most, reached);
  }

  /// The clock, but for what these calls have taken.
  [[nodiscard]] std::int64_t own_time() const { return clock_() - outside_; }

 private:
  class timer {
   public:
    explicit timer(timed_calls& of) : of_(&of), begun_(of.clock_()) {}
    timer(const timer&) = delete;
    timer& operator=(const timer&) = delete;
    ~timer() { of_->outside_ += of_->clock_() - begun_; }

   private:
    timed_calls* of_;
    std::int64_t begun_;
  };

  Clock clock_;
  std::int64_t outside_ = 0;
};

namespace replayed {

inline constexpr std::size_t rows = 32, width = 64, matrices = 32;
using matrix = belay::view<const float, 2>;

/// As many products as a model of some layers has parameters: what each costs the host is in a step's time.
struct network {
  std::vector<belay::parameter<float>> weights;

  network() {
    weights.reserve(matrices);
    for (std::size_t i = 0; i < matrices; ++i)
      weights.push_back(belay::parameter<float>("weight " + std::to_string(i), {width, width}));
  }
  void for_each_parameter(auto&& visit) {
    for (auto& each : weights) visit(each);
  }

  struct residue {
    belay::view<float, 2> out;
    std::array<matrix, matrices> inputs;
  };
  residue forward(auto& frame, matrix x) const {
    residue r{};
    for (std::size_t i = 0; i < matrices; ++i) {
      r.inputs[i] = i == 0 ? x : matrix(r.out);
      r.out = belay::keep<float>(frame, {rows, width});
      frame.product(r.out, r.inputs[i], matrix{frame.read(weights[i]).data(), {width, width}});
    }
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    matrix slope = dy;
    for (std::size_t i = matrices; i-- > 0;) {
      frame.product(frame.add_to(weights[i]), belay::transposed(r.inputs[i]), slope);
      auto next = i == 0 ? dx : belay::scratch<float>(frame, {rows, width});
      frame.product(next, slope, belay::transposed(matrix{frame.read(weights[i]).data(), {width, width}}));
      slope = next;
    }
  }
};

/// A body of one rank that trains so many steps, of which all but the first are launches, and adds to `told` what each
/// has taken by `now()`.
template <class Now>
auto body(std::size_t steps, std::vector<std::int64_t>& told, const Now& now) {
  return [&told, steps, now](auto& rank, auto& run) {
    using run_type = std::remove_reference_t<decltype(run)>;
    belay::mesh mesh{rank, {}};
    network net;
    belay::parameter_store<run_type, belay::precision<float>> store{
        run, mesh, net, belay::zero_stage::none, {.seed = 3}};
    belay::adamw optimizer{store, {}};
    belay::step_graphs graphs{mesh, store, optimizer, belay::graph_use::captured};
    constexpr std::size_t elements = 2 * rows * width;
    const std::span<float> batch = run.template lease<float>(belay::tier::device, elements, "batch");
    const std::span<float> staged = run.template lease<float>(belay::tier::pinned, elements, "batch");
    for (auto number : run.steps(steps)) {
      const std::int64_t begun = now();
      belay::queue_copy(run.engine().compute(), batch.data(), staged.data(), elements * sizeof(float));
      belay::step step{run.engine(), store};
      graphs.run([&] {
        auto y = belay::forward(step, net, belay::constant(matrix{batch.data(), {rows, width}}));
        auto [loss, grad] =
            belay::squared_error(step, matrix(y.out()), matrix{batch.data() + rows * width, {rows, width}});
        std::move(y).backward(grad);
      });
      auto outcome = std::move(step).commit(mesh, belay::samples{rows});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-3 / static_cast<double>(number), .clip = 1.0});
      if (!run.rehearsing()) told.push_back(now() - begun);
    }
  };
}

}  // namespace replayed
}  // namespace bench
