// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A frozen base model fills every device at the start: DeepSpeed's issue 6737. It was whole on each rank before
// anything was divided, and freezing changed nothing. Here a model of four times a rank's budget, three quarters of it
// frozen, is born divided. That a frozen gradient does not compile: tests/compile_fail/frozen_*.cpp. See
// docs/explanation/field_failures/frozen_base_model.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/core/hash.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/step/handle_store.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"

namespace {

constexpr std::size_t width = 128, rows = 1, ranks = 16;
constexpr std::size_t frozen_layers = 48, trained_layers = 16;
constexpr std::size_t layer_bytes = width * width * sizeof(float);
constexpr std::size_t model_bytes = (frozen_layers + trained_layers) * layer_bytes;
constexpr std::size_t budget_bytes = model_bytes / 4;

using matrix = belay::view<const float, 2>;

// y = x + w x, so that many of them stay of one size.
template <class Learning>
struct block {
  belay::parameter<float, belay::replicate, Learning> weight;
  explicit block(std::size_t number)
      : weight({"block." + std::to_string(number), {width, width}, belay::initial::normal(0.01)}) {}
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };
  residue forward(auto& frame, matrix x) {
    auto y = frame.template keep<float>(x.shape());
    frame.product(y, x, transposed(frame.read(weight)));
    frame.run([=] {
      for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] += x.data()[i];
    });
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    if constexpr (belay::has_gradient<Learning>) frame.product(frame.add_to(weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(weight));
    frame.run([=] {
      for (std::size_t i = 0; i < dx.size(); ++i) dx.data()[i] += dy.data()[i];
    });
  }
  void for_each_parameter(auto&& visit) { visit(weight); }
};

struct model {
  std::deque<block<belay::frozen>> base;
  std::deque<block<belay::trainable>> top;
  model() {
    for (std::size_t i = 0; i < frozen_layers; ++i) base.emplace_back(i);
    for (std::size_t i = 0; i < trained_layers; ++i) top.emplace_back(frozen_layers + i);
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

std::uint64_t hash_of(auto& layers) {
  belay::content_hash hash;
  for (auto& one : layers)
    one.weight.each_held([&](std::size_t, auto values) { hash.add_bytes(values.data(), values.size_bytes()); });
  return hash.value();
}

template <int Stage>
void train(found& out, std::size_t budget) {
  std::mutex lock;
  const auto body = [&](auto& rank, auto& run) {
    if (!run.rehearsing()) ++out.bodies;
    belay::mesh mesh{rank, {.data = rank.size()}};
    model net;
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{},
                                 belay::store_options{.bucket_bytes = layer_bytes}};
    std::deque<belay::gathers<block<belay::frozen>, decltype(store)>> base;
    for (auto& one : net.base) base.emplace_back(one, store);
    std::deque<belay::gathers<block<belay::trainable>, decltype(store)>> top;
    for (auto& one : net.top) top.emplace_back(one, store);
    belay::adamw optimizer{store};
    const std::uint64_t frozen = run.rehearsing() ? 0 : hash_of(net.base);
    const std::uint64_t trained = run.rehearsing() ? 0 : hash_of(net.top);
    const auto& meter = run.meters()[belay::tier::device];
    const std::size_t at_start = meter.peak_bytes();
    std::vector<float> x(rows * width, 1.0F), target(rows * width, 0.5F);
    for (auto number : run.steps(3)) {
      static_cast<void>(number);
      belay::step step{run.engine(), store};
      auto lower = belay::observe(step, base[0], matrix{x.data(), {rows, width}});
      for (std::size_t i = 1; i < base.size(); ++i) lower = belay::observe(step, base[i], lower.out());
      belay::handle_store<decltype(belay::forward(step, top[0], lower.out()))> handles{top.size()};
      handles.keep(0, belay::forward(step, top[0], lower.out()));
      for (std::size_t i = 1; i < top.size(); ++i)
        handles.keep(i, belay::forward(step, top[i], handles.at(i - 1).out()));
      auto [loss, grad] =
          belay::squared_error(step, handles.at(top.size() - 1).out(), matrix{target.data(), {rows, width}});
      for (std::size_t i = top.size(); i-- > 0;) grad = handles.take(i).backward(grad);
      auto outcome = std::move(step).commit(mesh, belay::samples{ranks * rows});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { out.losses.push_back(mean); });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
      }
    }
    if (run.rehearsing()) return;
    run.engine().compute().synchronize();
    const std::lock_guard guard(lock);
    out.peak_at_start = std::max(out.peak_at_start, at_start);
    out.peak = std::max(out.peak, meter.peak_bytes());
    out.planned = std::max(out.planned, run.planned().peak_bytes(belay::tier::device));
    out.frozen_changed = out.frozen_changed || hash_of(net.base) != frozen;
    out.trained_changed = out.trained_changed || hash_of(net.top) != trained;
  };
  belay::launch_options options;
  options.budget[belay::tier::device] = budget;
  belay::launch(belay::host::world{static_cast<int>(ranks)}, body, options);
}

}  // namespace

TEST_CASE("a model of four times the budget, most of it frozen, starts and trains within it") {
  found out;
  train<3>(out, budget_bytes);
  CHECK(out.peak == out.planned);
  CHECK(out.peak <= budget_bytes);
  // Shares of values, of gradients and of two moments; a share is even within one unit of 4096 elements a kind.
  constexpr std::size_t shares = (model_bytes + 3 * trained_layers * layer_bytes) / ranks;
  CHECK(out.peak_at_start <= shares + (std::size_t{64} << 10U));
  CHECK(out.losses.size() == 3);
  CHECK(out.losses.back() < out.losses.front());
  CHECK(!out.frozen_changed);
  CHECK(out.trained_changed);

  SUBCASE("and is refused before anything runs where the budget is one byte short") {
    found none;
    CHECK_THROWS_AS(train<3>(none, out.planned - 1), belay::plan_refused);
    CHECK(none.bodies == 0);
  }
}

TEST_CASE("whole on every rank, as it was there, it does not fit") {
  found none;
  CHECK_THROWS_AS(train<2>(none, budget_bytes), belay::plan_refused);
  CHECK(none.bodies == 0);
}
