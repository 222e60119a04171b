// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/step.hpp"
#include "belay/train/optimizer.hpp"

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
