// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <span>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/step.hpp"

namespace {

using tensor = belay::view<double, 3>;
using constant_tensor = belay::view<const double, 3>;

// y = weight * x. The weight is the caller's, so that several layers can share it.
class scaling {
 public:
  struct residue {
    tensor out;
    constant_tensor x;
  };

  explicit scaling(belay::parameter<double>& weight) : weight_(&weight) {}

  template <class Frame>
  residue forward(Frame& frame, constant_tensor x) {
    residue r{frame.template keep<double>(x.shape()), x};
    frame.run([&] {
      for (std::size_t i = 0; i < x.size(); ++i) r.out.data()[i] = *weight_->value() * x.data()[i];
    });
    return r;
  }

  template <class Frame>
  void backward(Frame& frame, residue&& r, constant_tensor dout, tensor dx) {
    frame.run([&] {
      for (std::size_t i = 0; i < dout.size(); ++i) dx.data()[i] = *weight_->value() * dout.data()[i];
      for (std::size_t i = 0; i < dout.size(); ++i) *weight_->gradient() += r.x.data()[i] * dout.data()[i];
    });
  }

 private:
  belay::parameter<double>* weight_;
};

using buckets = belay::gradient_buckets<double, belay::host::group>;

struct bench {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 16}, meter};
};

}  // namespace

TEST_CASE("two layers of a rank share a parameter: its bucket goes when both have contributed") {
  for (const int ranks : {1, 3}) {
    belay::host::world{ranks}.run([](belay::host::rank& rank) {
      belay::parameter<double> weight{
          {.name = "shared", .shape = {1}, .first_values = belay::initial::constant(3), .uses = 2}};
      scaling lower{weight}, upper{weight};
      std::vector<belay::bucket_member<double>> members{{weight, 0}};  // once
      buckets gradients{members, {{rank.world()}}, 1 << 20, 1};
      std::vector<double> values(gradients.layout().elements()), grads(gradients.layout().gradient_elements());
      gradients.bind(values, grads);
      weight.initialise(1);

      bench b;
      const double x = rank.number() + 1, one = 1;
      belay::step step{b.engine};
      gradients.begin(1);
      auto hidden = belay::forward(step, lower, constant_tensor{&x, {1, 1, 1}});
      auto out = belay::forward(step, upper, hidden.out());
      CHECK(out.out()(0, 0, 0) == 9 * x);
      auto grad = std::move(out).backward(constant_tensor{&one, {1, 1, 1}});
      gradients.contributed(0, 1, 0);
      CHECK(gradients.launched() == 0);
      grad = std::move(hidden).backward(grad);
      gradients.contributed(0, 1, 0);
      CHECK(gradients.launched() == 1);
      auto reduced = gradients.finish(belay::target_tokens{1});
      const double all = rank.size() * (rank.size() + 1) / 2.0;  // of x
      CHECK(*reduced.owned()[0].gradient == 2 * 3 * all);        // of w * w * x by w
      static_cast<void>(std::move(step).commit());
    });
  }
}

TEST_CASE("two stages hold a copy each of what they share: a replica group of both keeps the copies equal") {
  belay::host::world{2}.run([](belay::host::rank& rank) {
    belay::parameter<double> weight{{.name = "shared", .shape = {1}, .first_values = belay::initial::normal(1)}};
    buckets gradients{{{weight, 0}}, {{rank.world()}}, 1 << 20, 1};
    std::vector<double> values(gradients.layout().elements()), grads(gradients.layout().gradient_elements());
    gradients.bind(values, grads);
    weight.initialise(1);

    scaling half{weight};
    bench b;
    const double w = *weight.value(), x = 5, above = w;  // what comes from the other stage, forward and backward
    const double input = rank.number() == 0 ? x : w * x, dout = rank.number() == 0 ? above : 1;
    belay::step step{b.engine};
    gradients.begin(1);
    auto out = belay::forward(step, half, constant_tensor{&input, {1, 1, 1}});
    static_cast<void>(std::move(out).backward(constant_tensor{&dout, {1, 1, 1}}));
    gradients.contributed(0, 1, 0);
    auto reduced = gradients.finish(belay::target_tokens{1});
    CHECK(*reduced.owned()[0].gradient == doctest::Approx(2 * w * x));
    static_cast<void>(std::move(step).commit());
  });
}
