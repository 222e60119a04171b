// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/handle_store.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "belay/step.hpp"
#include "support/scaling.hpp"

using scaling_bench::bench;
using scaling_bench::scaling;

namespace {
using handle = belay::saved<belay::host_engine, scaling, belay::view<const double, 3>>;
using store = belay::handle_store<handle>;

static_assert(!std::is_move_constructible_v<handle> && !std::is_copy_constructible_v<handle>);
static_assert(std::is_nothrow_move_constructible_v<store> && !std::is_copy_constructible_v<store>);
}  // namespace

TEST_CASE("handles that a store has kept give the same gradients as named ones") {
  bench b;
  scaling layers[3]{{2, 0}, {3, 0}, {5, 0}};
  for (int repeat = 0; repeat < 2; ++repeat) {
    belay::step step{b.engine};
    store handles{3};
    auto x = b.x;
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK_FALSE(handles.holds(i));
      handles.keep(i, belay::forward(step, layers[i], x));
      x = handles.at(i).out();
    }
    CHECK(x(0, 1, 2) == 180);
    std::optional<belay::gradient<belay::host_engine, double, 3>> grad;
    auto dout = b.x;
    for (std::size_t i = 3; i-- > 0;) {
      grad.emplace(handles.take(i).backward(dout));
      dout = *grad;
      CHECK_FALSE(handles.holds(i));
    }
    CHECK(dout(0, 1, 2) == 180);
    auto outcome = std::move(step).commit();
    CHECK(belay::committed(outcome) != nullptr);
  }
  CHECK(layers[0].gradient == 2 * 15 * 91);
}

TEST_CASE("a handle that was taken can have a name, and one from elsewhere can be kept") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  store handles{1};
  auto mine = belay::forward(step, layer, b.x);
  handles.keep(0, std::move(mine));
  auto again = handles.take(0);
  CHECK(again.out()(0, 0, 2) == 6);
  static_cast<void>(std::move(again).backward(b.x));
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("slots that do not exist, hold nothing or hold a handle that owes are named") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  store none, handles{2};
  CHECK(none.size() == 0);
  CHECK_FALSE(none.holds(0));
  CHECK_THROWS_WITH_AS(static_cast<void>(none.at(0)), doctest::Contains("of 0 slots was asked for slot 0"),
                       belay::usage_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(handles.at(2)), doctest::Contains("of 2 slots was asked for slot 2"),
                       belay::usage_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(handles.at(1)), doctest::Contains("slot 1 of a handle store holds no handle"),
                       belay::usage_error);
  handles.keep(1, belay::forward(step.micro_batch(7), layer, b.x));
  const std::string opened = "handle_store.cpp:" + std::to_string(__LINE__ - 1);
  try {
    handles.keep(1, belay::forward(step, layer, b.x));
    FAIL("a handle was lost");
  } catch (const belay::usage_error& error) {
    const std::string text = error.what();
    CHECK(text.find("slot 1 of a handle store holds a handle that still owes") != std::string::npos);
    CHECK(text.find("layer 'scaling' (micro-batch 7) opened at ") != std::string::npos);
    CHECK(text.find(opened) != std::string::npos);
  }
  CHECK(b.engine.obligations().open_count() == 2);  // that which was not kept is lost, and the ledger knows it
  step.cut_off();
}

TEST_CASE("what a store still holds at the commit is named, and the next step uses its slots again") {
  bench b;
  scaling layer{2};
  store handles{1};
  const auto lose = [&] {
    belay::step step{b.engine};
    handles.keep(0, belay::forward(step, layer, b.x));
    auto outcome = std::move(step).commit();  // a checked build throws here
    CHECK(belay::refused(outcome) != nullptr);
  };
  if constexpr (belay::checked(belay::check_level::local)) {
    CHECK_THROWS_AS(lose(), belay::open_obligations);
    CHECK_THROWS_AS(lose(), belay::open_obligations);
  } else {
    lose();
    lose();
  }
  handles.forget();
  CHECK_FALSE(handles.holds(0));
  CHECK(b.meter.live_bytes() == 0);
}

TEST_CASE("a moved store takes its handles along") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  store first{1};
  first.keep(0, belay::forward(step, layer, b.x));
  store second{std::move(first)};
  CHECK(second.take(0).backward(b.x).values()(0, 0, 0) == 2);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("a store that an exception leaves with a handle may outlive the engine") {
  scaling layer{2};
  store handles{1};  // a member of a trainer
  auto b = std::make_unique<bench>();
  try {
    belay::step step{b->engine};
    handles.keep(0, belay::forward(step, layer, b->x));
    throw std::string("the data has ended");
  } catch (const std::string&) {
  }
  b.reset();
  CHECK(handles.holds(0));  // what is destroyed after its engine touches nothing of it
}

namespace {
// What it keeps cannot be moved, as a lock or a tensor of another library.
struct pinned_layer {
  struct lock {
    lock() = default;
    lock(const lock&) = delete;
  };
  struct residue {
    belay::view<double, 3> out;
    lock held;
  };
  residue forward(auto& frame, belay::view<const double, 3> x) {
    return {belay::keep<double>(frame, {x.extent(0), x.extent(1), x.extent(2)}), {}};
  }
  void backward(auto&, residue&&, belay::view<const double, 3>, belay::view<double, 3>) {}
};
}  // namespace

TEST_CASE("what a forward keeps need not move") {
  bench b;
  pinned_layer layer;
  belay::step step{b.engine};
  auto y = belay::forward(step, layer, b.x);
  CHECK(y.out().size() == b.x.size());
  std::move(y).discard("it was asked for its size alone");
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}
