// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What pages of docs/howto and docs/tutorial quote, where it stands in no example: each piece compiles and trains.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "belay/train/parameter_files.hpp"
#include "unit/train/support/directory.hpp"

namespace {

using matrix = belay::view<const float, 2>;

template <belay::learning Learning>
struct linear {
  belay::parameter<float, belay::replicate, Learning> weight;
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
    if constexpr (belay::has_gradient<Learning>) frame.product(frame.add_to(weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(weight));
  }
};

// The layer without parameters of the tutorial.
struct rectified {
  const float* x;
  float* y;
  void operator()(std::size_t i) const { y[i] = x[i] > 0 ? x[i] : 0; }
};
struct rectified_backward {
  const float *x, *dy;
  float* dx;
  void operator()(std::size_t i) const { dx[i] = x[i] > 0 ? dy[i] : 0; }
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

namespace bent {
struct network {
  linear<belay::trainable> first{{"first.weight", {32, 16}}}, second{{"second.weight", {4, 32}}};
  relu bend;
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};
}  // namespace bent

namespace frozen {
struct network {
  linear<belay::frozen> base{{"base.weight", {32, 16}}};
  linear<belay::trainable> head{{"head.weight", {4, 32}}};
  void for_each_parameter(auto&& visit) { visit(base.weight), visit(head.weight); }
};
}  // namespace frozen

// Reads and adds to the parameter that another class has.
struct shared_linear {
  belay::parameter<float>* weight;
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };

  residue forward(auto& frame, matrix x) {
    auto y = belay::keep<float>(frame, x.shape());
    frame.product(y, x, transposed(frame.read(*weight)));
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    frame.product(frame.add_to(*weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(*weight));
  }
};

struct tied {
  belay::parameter<float> weight{
      {.name = "shared", .shape = {16, 16}, .first_values = belay::initial::normal(0.25), .uses = 2}};
  shared_linear lower{&weight}, upper{&weight};
  void for_each_parameter(auto&& visit) { visit(weight); }  // once
};

std::vector<float> waves(std::size_t count) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = std::sin(static_cast<float>(i * i % 97));
  return out;
}

}  // namespace

TEST_CASE("a layer of one's own between two: the loss falls, and evaluations between the steps see it") {
  const std::vector<float> batch = waves(32 * 16), targets = waves(32 * 4);
  std::vector<double> losses, held_out_losses;
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    bent::network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    const matrix inputs{batch.data(), {32, 16}}, wanted{targets.data(), {32, 4}};
    const auto train_once = [&] {
      belay::step step{run.engine(), store};
      auto h = belay::forward(step, net.first, belay::constant(matrix{batch.data(), {32, 16}}));
      auto b = belay::forward(step, net.bend, h.out());
      auto y = belay::forward(step, net.second, b.out());
      auto [loss, grad] = belay::squared_error(step, y.out(), matrix{targets.data(), {32, 4}});
      grad = std::move(y).backward(grad);
      grad = std::move(b).backward(grad);
      std::move(h).backward(grad);
      return std::move(step).commit(mesh, belay::samples{32});
    };
    for (auto number : run.steps(100)) {
      if (run.every(100, number)) {
        const auto held_out = belay::evaluate(run, mesh, [&] {
          belay::forward_only pass{run.engine()};
          auto h = belay::observe(pass, net.first, inputs);
          auto y = belay::observe(pass, net.second, h.out());
          belay::squared_error(pass, y.out(), wanted);
        });
        run.report(held_out, [&](double mean) { held_out_losses.push_back(mean); });
      }
      auto outcome = train_once();
      if (const auto* why = belay::refused(outcome)) {
        if (rank.number() == 0) std::fprintf(stderr, "step %zu: %s\n", number, belay::text(*why).c_str());
        continue;
      }
      auto* ok = belay::committed(outcome);
      REQUIRE(ok != nullptr);
      run.report(*ok, [&](double mean) { losses.push_back(mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
    }
  });
  REQUIRE(losses.size() == 100);
  CHECK(losses.back() < losses.front() / 2);
  CHECK(held_out_losses.size() == 1);
}

TEST_CASE("a frozen base stays what it was, and the head above it learns; both are exported, and imported") {
  const train_bench::directory folder;
  const std::vector<float> batch = waves(32 * 16), targets = waves(32 * 4);
  belay::launch(belay::host::world{2}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    frozen::network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    std::vector<float> base, head;
    if (!run.rehearsing()) {
      base.assign(net.base.weight.value(), net.base.weight.value() + 32 * 16);
      head.assign(net.head.weight.value(), net.head.weight.value() + 4 * 32);
    }
    std::vector<double> losses;
    for (auto number : run.steps(20)) {
      static_cast<void>(number);
      belay::step step{run.engine(), store};
      auto features = belay::observe(step, net.base, matrix{batch.data(), {32, 16}});
      auto y = belay::forward(step, net.head, features.out());
      auto [loss, grad] = belay::squared_error(step, y.out(), matrix{targets.data(), {32, 4}});
      std::move(y).backward(grad);
      auto outcome = std::move(step).commit(mesh, belay::samples{64});
      auto* ok = belay::committed(outcome);
      REQUIRE(ok != nullptr);
      run.report(*ok, [&](double mean) { losses.push_back(mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
    }
    belay::export_parameters(mesh, net, folder.path);
    if (run.rehearsing()) return;
    if (rank.number() == 0) CHECK(losses.back() < losses.front());
    CHECK(std::equal(base.begin(), base.end(), net.base.weight.value()));
    CHECK_FALSE(std::equal(head.begin(), head.end(), net.head.weight.value()));
    const std::vector<float> learned(net.head.weight.value(), net.head.weight.value() + head.size());
    std::fill_n(net.head.weight.value(), head.size(), 0.0F);
    belay::import_parameters(mesh, net, folder.path);  // a file, or a folder with one or with an index
    CHECK(std::equal(learned.begin(), learned.end(), net.head.weight.value()));
  });
}

TEST_CASE("two layers that share a parameter add to one gradient") {
  const std::vector<float> batch = waves(8 * 16);
  std::vector<double> losses;
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    tied net;
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    belay::adamw optimizer{store};
    for (auto number : run.steps(50)) {
      static_cast<void>(number);
      belay::step step{run.engine(), store};
      auto h = belay::forward(step, net.lower, belay::constant(matrix{batch.data(), {8, 16}}));
      auto y = belay::forward(step, net.upper, h.out());
      auto [loss, grad] = belay::squared_error(step, y.out(), matrix{batch.data(), {8, 16}});
      grad = std::move(y).backward(grad);
      std::move(h).backward(grad);
      auto outcome = std::move(step).commit(mesh, belay::samples{8});
      auto* ok = belay::committed(outcome);
      REQUIRE(ok != nullptr);
      run.report(*ok, [&](double mean) { losses.push_back(mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
    }
  });
  REQUIRE(losses.size() == 50);
  CHECK(losses.back() < losses.front() / 2);
}
