// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A parameter read as a whole outside of layers, whatever ranks divide.
#include "belay/train/whole_parameter.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;

namespace {

struct listed : linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};
struct base_and_layer {
  belay::parameter<float, belay::replicate, belay::frozen> base{
      belay::parameter_spec{"base", {5, 3}, belay::initial::normal(1)}};
  listed layer{{{"layer.weight", {3, 7}}}};
  void for_each_parameter(auto&& visit) { visit(base), visit(layer.weight); }
};

struct result {
  std::vector<float> weight, base;
  bool as_planned = false;
};

template <int Stage>
result run_on(int ranks) {
  result out;
  belay::launch(belay::host::world{ranks}, [&out](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    base_and_layer net;
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{}};
    belay::gathers layer{net.layer, store};
    belay::adamw optimizer{store};
    const data batch{1, 0};
    const auto size_of = [&](const auto& handle) { return handle.values().size(); };
    for (auto number : run.steps(3)) {
      static_cast<void>(number);
      const std::size_t before = run.meters()[belay::tier::device].live_bytes();
      {
        auto weight = store.read(net.layer.weight);
        auto moved = std::move(weight);
        const auto base = store.read(net.base);  // both at a time
        CHECK(size_of(moved) == 21);
        CHECK(size_of(base) == 15);
        if (!run.rehearsing() && rank.number() == rank.size() - 1) {
          out.weight.assign(moved.values().begin(), moved.values().end());
          out.base.assign(base.values().begin(), base.values().end());
        }
      }
      CHECK(run.meters()[belay::tier::device].live_bytes() == before);
      belay::step step{run.engine(), store};
      auto y = belay::forward(step, layer, belay::constant(batch.inputs()));
      auto [loss, grad] = belay::squared_error(step, y.out(), batch.targets());
      std::move(y).backward(grad);
      if (!run.rehearsing())
        CHECK_THROWS_WITH_AS(static_cast<void>(store.read(net.base)), doctest::Contains("still open"),
                             belay::usage_error);
      auto outcome = std::move(step).commit(mesh, belay::samples{rows * static_cast<std::size_t>(rank.size())});
      if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 0.1});
    }
    if (!run.rehearsing() && rank.number() == 0)
      out.as_planned = run.planned().peak_bytes(belay::tier::device) == run.meters()[belay::tier::device].peak_bytes();
  });
  return out;
}

}  // namespace

static_assert(!std::is_copy_constructible_v<belay::whole_parameter<float>>);

TEST_CASE("a parameter is read whole on every rank, trained or frozen, and its memory is planned and given back") {
  const result one = run_on<0>(1);
  REQUIRE(one.weight.size() == 21);
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    for (const result& got : {run_on<0>(ranks), run_on<1>(ranks), run_on<2>(ranks), run_on<3>(ranks)}) {
      CHECK(got.base == one.base);
      for (std::size_t i = 0; i < 21; ++i) CHECK(got.weight[i] == doctest::Approx(one.weight[i]).epsilon(1e-5));
      CHECK(got.as_planned);
    }
  }
}
