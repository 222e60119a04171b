// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What is wrong to do with offloaded activations, and who says so.
#include <doctest/doctest.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/kernel.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"
#include "support/offloaded_layers.hpp"

using namespace offloaded_layers;
using belay::tier;

namespace {

// Its output is its input.
struct reshaped {
  struct residue {
    matrix out;
  };
  [[nodiscard]] static const char* name() { return "reshaped"; }
  residue forward(auto&, matrix x) { return {x}; }
  void backward(auto& frame, residue&&, matrix dy, belay::view<double, 2> dx) {
    frame.each(dx.size(), belay::kernel::multiple<double>{1, dy.data(), dx.data()});
  }
};

// Runs `body(run, step, activations, x)` in one step of a run.
template <class Body>
void in_a_step(Body&& body) {
  belay::launch(belay::host::world{1}, [&](auto&, auto& run) {
    std::vector<double> input(rows * width, 1.0);
    belay::offloaded_activations activations{run, tier::host};
    belay::step step{run.engine()};
    body(run, step, activations, matrix{input.data(), {rows, width}});
    static_cast<void>(std::move(step).commit());
    CHECK(run.meters()[tier::device].live_bytes() == lasting_bytes(run, tier::device));
  });
}

}  // namespace

TEST_CASE("an output that was let go of is not given any more") {
  in_a_step([](auto&, const auto& step, auto& activations, matrix x) {
    curved bent;
    belay::offloads layer{bent, activations};
    auto h = belay::forward(step, layer, x);
    static_cast<void>(h.out());
    h.let_go();
    CHECK_THROWS_WITH_AS(static_cast<void>(h.out()), doctest::Contains("is asked for after let_go"),
                         belay::usage_error);
    CHECK_THROWS_AS(h.let_go(), belay::usage_error);
    static_cast<void>(std::move(h).backward(x));
  });
}

TEST_CASE("a handle that is discarded frees both tiers") {
  in_a_step([](auto& run, const auto& step, auto& activations, matrix x) {
    curved bent;
    belay::offloads layer{bent, activations};
    auto one = belay::forward(step, layer, x);
    auto two = belay::forward(step, layer, one.out());
    auto three = belay::forward(step, layer, two.out());
    std::move(one).discard("away");
    std::move(three).discard("leaving");
    std::move(two).discard("away");
    CHECK(run.meters()[tier::device].live_bytes() == lasting_bytes(run, tier::device));
    CHECK(run.meters()[tier::host].live_bytes() == 0);
  });
}

TEST_CASE("a forward that owes nothing leaves nothing") {
  in_a_step([](auto& run, const auto& step, auto& activations, matrix x) {
    curved bent;
    belay::offloads layer{bent, activations};
    const auto seen = belay::observe(step, layer, x);
    CHECK(seen.out().data() != nullptr);
    CHECK(run.meters()[tier::host].live_bytes() == 0);
  });
}

TEST_CASE("what cannot be offloaded is refused by name") {
  in_a_step([](auto& run, const auto& step, auto& activations, matrix x) {
    CHECK_THROWS_WITH_AS(belay::offloaded_activations(run, tier::file),
                         doctest::Contains("in tier file have no folder"), belay::usage_error);
    reshaped view_of_input;
    belay::offloads layer{view_of_input, activations};
    CHECK_THROWS_WITH_AS(
        belay::forward(step, layer, x).discard("refused"),
        doctest::Contains("layer 'reshaped' is offloaded, and its output is in the memory of its input"),
        belay::usage_error);
    belay::tier_meter meter;
    using engine_type = std::remove_reference_t<decltype(run.engine())>;
    engine_type other{typename engine_type::memory_type{1 << 16}, meter};
    belay::step elsewhere{other};
    curved bent;
    belay::offloads own{bent, activations};
    CHECK_THROWS_WITH_AS(belay::forward(elsewhere, own, x).discard("refused"),
                         doctest::Contains("and runs in a step of another run"), belay::usage_error);
    static_cast<void>(std::move(elsewhere).commit());
  });
}
