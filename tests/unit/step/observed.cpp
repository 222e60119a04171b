// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/observed.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "belay/step.hpp"
#include "support/scaling.hpp"

using scaling_bench::bench;
using scaling_bench::scaling;

namespace {
// A residue that can be made by moving, not assigned to.
struct with_reference : scaling {
  struct residue : scaling::residue {
    const double& weight;
  };
  template <class Frame>
  residue forward(Frame& frame, belay::view<const double, 3> x) {
    return {scaling::forward(frame, x), weight};
  }
};

void observe_layer_after_layer(auto layer) {
  bench b;
  {
    belay::step step{b.engine};
    auto seen = belay::observe(step, layer, b.x);
    const std::size_t one = b.meter.live_bytes();
    for (int depth = 1; depth < 5; ++depth) {
      seen = belay::observe(step, layer, seen.out());
      CHECK(b.meter.live_bytes() == one);
    }
    CHECK(seen.out()(0, 0, 0) == 32);
    auto& itself = seen;
    seen = std::move(itself);
    CHECK(seen.out()(0, 1, 2) == 192);
    auto other = belay::observe(step, layer, b.x);
    seen = std::move(other);
    CHECK(b.meter.live_bytes() == one);
    CHECK(seen.out()(0, 0, 0) == 2);
    auto outcome = std::move(step).commit();
    CHECK(b.meter.live_bytes() == 0);
    belay::step next{b.engine};
    seen = belay::observe(next, layer, b.x);  // what it held ended with its step
    CHECK(b.meter.live_bytes() == one);
    next.cut_off();
  }
  CHECK(b.meter.live_bytes() == 0);
}
}  // namespace

TEST_CASE("an observed result is assigned to: what it held is given back, layer after layer in one name") {
  observe_layer_after_layer(scaling{2});
  observe_layer_after_layer(with_reference{});
}

TEST_CASE("the output of an observed result whose step has ended, or that was moved from, is a named error") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  auto seen = belay::observe(step.micro_batch(2), layer, b.x);
  auto other = std::move(seen);
  CHECK(other.out()(0, 0, 0) == 2);
  CHECK_THROWS_WITH_AS(static_cast<void>(seen.out()), doctest::Contains("is asked for after it was moved from"),
                       belay::usage_error);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
  CHECK_THROWS_WITH_AS(static_cast<void>(other.out()),
                       doctest::Contains("'scaling' (micro-batch 2) opened at "), belay::usage_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(other.out()), doctest::Contains("is asked for after its step has ended"),
                       belay::usage_error);
}
