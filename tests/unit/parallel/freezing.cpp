// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/pipeline.hpp"
#include "belay/parallel/pipeline_stage.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"

namespace {

using tensor = belay::view<double, 3>;
using constant_tensor = belay::view<const double, 3>;

// y = weight * x, whether the weight learns or not.
template <belay::learning Learning>
class scaling {
 public:
  struct residue {
    tensor out;
    constant_tensor x;
  };

  explicit scaling(std::string name) : weight_({std::move(name), {1}, belay::initial::constant(2)}) {}

  [[nodiscard]] auto& weight() { return weight_; }

  template <class Frame>
  residue forward(Frame& frame, constant_tensor x) {
    residue r{frame.template keep<double>(x.shape()), x};
    frame.run([&] {
      for (std::size_t i = 0; i < x.size(); ++i) r.out.data()[i] = *weight_.value() * x.data()[i];
    });
    return r;
  }

  template <class Frame>
  void backward(Frame& frame, residue&& r, constant_tensor dout, tensor dx) {
    frame.run([&] {
      for (std::size_t i = 0; i < dout.size(); ++i) dx.data()[i] = *weight_.value() * dout.data()[i];
      if constexpr (belay::has_gradient<Learning>) {
        for (std::size_t i = 0; i < dout.size(); ++i) *weight_.gradient() += r.x.data()[i] * dout.data()[i];
      }
    });
  }

 private:
  belay::parameter<double, belay::replicate, Learning> weight_;
};

}  // namespace

TEST_CASE("what is frozen passes gradients through, takes neither gradient nor state, and stays what it was") {
  const auto losses = belay::host::world{2}.run([](belay::host::rank& rank) {
    scaling<belay::trainable> adapter{"adapter"};
    scaling<belay::frozen> base{"base"};

    std::vector<belay::bucket_member<double>> members{{adapter.weight(), 0}};  // base.weight() would not compile
    belay::gradient_buckets<double, belay::host::group> gradients{members, {{rank.world()}}, 1 << 20, 1};
    std::vector<double> values(gradients.layout().elements()), grads(gradients.layout().gradient_elements());
    gradients.bind(values, grads);
    double frozen_value = 0;
    base.weight().bind(&frozen_value);
    adapter.weight().initialise(1);
    base.weight().initialise(1);
    std::vector<double> moments(belay::adamw<double, belay::host::group>::state_elements(gradients));
    CHECK(moments.size() == 2);
    belay::adamw<double, belay::host::group> optimizer{{.learning_rate = 0.1, .decay = 0}, gradients, moments};

    belay::tier_meter meter;
    belay::host_engine engine{belay::host_pages{1 << 16}, meter};
    const double input[2] = {1, 2};
    const constant_tensor x{input, {1, 1, 2}};
    std::vector<double> seen;
    for (int number = 0; number < 3; ++number) {
      belay::step step{engine};
      gradients.begin(1);
      auto hidden = belay::forward(step, adapter, x);
      auto out = belay::forward(step, base, hidden.out());
      seen.push_back(out.out()(0, 0, 0) * out.out()(0, 0, 0) + out.out()(0, 0, 1) * out.out()(0, 0, 1));
      belay::gradient<belay::host_engine, double, 3> grad{engine, x.shape()};
      for (std::size_t i = 0; i < 2; ++i) grad.values().data()[i] = 2 * out.out().data()[i];
      grad = std::move(out).backward(grad);
      grad = std::move(hidden).backward(grad);
      gradients.contributed(0, 1, 0);
      auto reduced = gradients.finish(belay::target_tokens{2});
      auto outcome = std::move(step).commit(belay::world_vote{rank.world()});
      auto* const ok = belay::committed(outcome);
      REQUIRE(ok != nullptr);
      optimizer.apply(*ok, std::move(reduced), belay::clip_factor::none());
    }
    CHECK(*adapter.weight().value() < 2);
    CHECK(frozen_value == 2);
    return seen;
  });
  for (const auto& rank : losses) {
    CHECK(rank[0] == 80);
    CHECK(rank[1] < rank[0]);
    CHECK(rank[2] < rank[1]);
  }
}

TEST_CASE("a frozen lower part needs no backward: it is observed, and owes nothing") {
  scaling<belay::frozen> base{"base"};
  double frozen_value = 0;
  base.weight().bind(&frozen_value);
  base.weight().initialise(1);
  scaling<belay::trainable> head{"head"};
  double value = 0, grad = 0;
  head.weight().bind(&value, &grad);
  head.weight().initialise(1);

  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 16}, meter};
  const double input[2] = {1, 2};
  const constant_tensor x{input, {1, 1, 2}};
  belay::step step{engine};
  auto features = belay::observe(step, base, x);
  auto out = belay::forward(step, head, features.out());
  CHECK(engine.obligations().open_count() == 1);
  static_cast<void>(std::move(out).backward(x));  // the features' gradient is not used
  CHECK(grad == 2 * 1 + 4 * 2);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

namespace {

using matrix = belay::view<const float, 2>;
constexpr std::size_t rows = 2, width = 5, micro_batches = 3, steps = 2;

struct calls {
  std::size_t backwards_of_base = 0, input_gradients = 0;
  friend bool operator==(const calls&, const calls&) = default;
};

// y = weight * x, and the gradient of x only where somebody wants it.
template <belay::learning Learning>
struct factor {
  belay::parameter<float, belay::replicate, Learning> weight;
  calls* seen;
  factor(const char* name, float value, calls& noted)
      : weight({name, {1}, belay::initial::constant(value)}), seen(&noted) {}

  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };

  residue forward(auto& frame, matrix x) {
    const auto y = belay::keep<float>(frame, x.shape());
    const float* const w = frame.read(weight).data();
    frame.run([=] {
      for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = *w * x.data()[i];
    });
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy) requires belay::has_gradient<Learning> {
    float* const dw = frame.add_to(weight).data();
    frame.run([=, x = r.x] {
      for (std::size_t i = 0; i < dy.size(); ++i) *dw += x.data()[i] * dy.data()[i];
    });
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) requires belay::has_gradient<Learning> {
    ++seen->input_gradients;
    const float* const w = frame.read(weight).data();
    frame.run([=] {
      for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = *w * dy.data()[i];
    });
    backward(frame, std::move(r), dy);
  }
};

// Two frozen layers as one, a pipeline's first(), which says so or, as the wrong one does, does not.
template <belay::learning Says>
struct base_of_two {
  using learning_type = Says;
  factor<belay::frozen> lower, upper;
  calls* seen;
  explicit base_of_two(calls& noted) : lower("lower", 2, noted), upper("upper", 3, noted), seen(&noted) {}

  struct residue {
    belay::view<float, 2> out;
  };

  residue forward(auto& frame, matrix x) { return {upper.forward(frame, lower.forward(frame, x).out).out}; }
  void backward(auto&, residue&&, matrix) { ++seen->backwards_of_base; }
};

template <belay::learning Says>
class network_on_base {
 public:
  explicit network_on_base(calls& seen) : base_(seen) { top_.emplace_back("top", 1.0F, seen); }
  [[nodiscard]] auto& first() { return base_; }
  [[nodiscard]] auto& layers() { return top_; }
  void for_each_parameter(auto&& visit) { visit(base_.lower.weight), visit(base_.upper.weight), visit(top_[0].weight); }

 private:
  base_of_two<Says> base_;
  std::deque<factor<belay::trainable>> top_;
};

template <belay::learning Says>
std::vector<double> train_on_base(calls& seen) {
  std::vector<double> losses;
  std::vector<float> x(micro_batches * rows * width, 0.5F), wanted(rows * width, 1);
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    seen = {};  // of the rehearsal
    belay::mesh mesh{rank, {}};
    network_on_base<Says> net{seen};
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    belay::adamw optimizer{store};
    belay::pipeline pipeline{mesh, belay::schedule::gpipe(1, micro_batches), belay::boundary<float>({rows, width})};
    belay::pipeline_stage stage{net};
    for (auto number : run.steps(steps)) {
      static_cast<void>(number);
      belay::step step{run.engine(), store};
      pipeline.run(step, stage, belay::view<const float, 3>{x.data(), {micro_batches, rows, width}},
                   [&](const auto& scope, matrix y) {
                     return belay::squared_error(scope, y, matrix{wanted.data(), {rows, width}});
                   });
      auto outcome = std::move(step).commit(mesh, belay::samples{micro_batches * rows});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { losses.push_back(mean); });
        optimizer.apply(std::move(*ok), {.learning_rate = 0.1});
      }
    }
  });
  return losses;
}

}  // namespace

TEST_CASE("a frozen base below a stage's layers, however deep, runs no backward, and nothing makes its gradient") {
  calls said, unsaid;
  const std::vector<double> losses = train_on_base<belay::frozen>(said);
  CHECK(said == calls{});
  REQUIRE(losses.size() == steps);
  CHECK(losses[1] < losses[0]);
  CHECK(train_on_base<belay::trainable>(unsaid) == losses);
  CHECK(unsaid == calls{steps * micro_batches, steps * micro_batches});
}
