// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/dtype.hpp"
#include "belay/step.hpp"
#include "support/scaling.hpp"

namespace {

using belay::bf16;
using scaling_bench::bench;

// out[i] = factor * in[i]: reads the one type, multiplies in fp32 and rounds once to the other.
template <class In, class Out>
struct scaled {
  float factor;
  const In* in;
  Out* out;
  void operator()(std::size_t i) const noexcept { out[i] = static_cast<Out>(factor * static_cast<float>(in[i])); }
};

// Its input is of In and its output of Out, so that its gradients are too.
template <class In, class Out>
struct scale_to {
  struct residue {
    belay::view<Out, 2> out;
  };
  float factor;

  residue forward(auto& frame, belay::view<const In, 2> x) {
    const auto y = belay::keep<Out>(frame, x.shape());
    frame.each(x.size(), scaled<In, Out>{factor, x.data(), y.data()});
    return {y};
  }
  void backward(auto& frame, residue&&, belay::view<const Out, 2> dy, belay::view<In, 2> dx) {
    frame.each(dy.size(), scaled<Out, In>{factor, dy.data(), dx.data()});
  }
};

static_assert(belay::differentiable<belay::view<const bf16, 2>>);
static_assert(!belay::differentiable<belay::constant_input<bf16, 2>>);
static_assert(!belay::differentiable<belay::view<const belay::fp16, 2>>);
static_assert(!belay::differentiable<belay::view<const int, 2>>);

}  // namespace

TEST_CASE("an activation of bf16 has a gradient of bf16, which takes half the bytes") {
  bench b;
  scale_to<float, bf16> narrow{1.01F};
  scale_to<bf16, bf16> middle{3};
  scale_to<bf16, float> widen{2};
  std::vector<float> x{1, 2, 3, 4, 5, 6}, ones(6, 1);
  const belay::view<const float, 2> input{x.data(), {2, 3}}, grad{ones.data(), {2, 3}};
  belay::step step{b.engine};
  auto one = belay::forward(step, narrow, input);
  auto two = belay::forward(step, middle, one.out());
  auto three = belay::forward(step, widen, two.out());
  static_assert(sizeof(*two.out().data()) == 2);
  CHECK(one.out()(0, 0) == bf16(1.01F));
  CHECK(three.out()(1, 2) == 2 * static_cast<float>(bf16(3 * static_cast<float>(bf16(1.01F * 6)))));
  auto d3 = std::move(three).backward(grad);
  static_assert(std::is_same_v<std::remove_const_t<typename decltype(d3.values())::value_type>, bf16>);
  CHECK(d3.values()(0, 0) == bf16(2));
  auto d2 = std::move(two).backward(d3);
  CHECK(d2.values()(1, 1) == bf16(6));
  auto d1 = std::move(one).backward(d2);
  CHECK(d1.values()(1, 1) == 1.01F * 6);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("a constant of bf16 has no gradient") {
  bench b;
  scale_to<bf16, float> widen{2};
  std::vector<bf16> x(6, bf16(1.5F));
  std::vector<float> ones(6, 1);
  belay::step step{b.engine};
  auto one = belay::forward(step, widen, belay::constant(belay::view<const bf16, 2>{x.data(), {2, 3}}));
  CHECK(one.out()(1, 2) == 3);
  static_assert(std::is_void_v<decltype(std::move(one).backward(belay::view<const float, 2>{ones.data(), {2, 3}}))>);
  std::move(one).backward(belay::view<const float, 2>{ones.data(), {2, 3}});
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}
