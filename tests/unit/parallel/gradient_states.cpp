// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The states of gradients: every event in every phase, and steps in all orders of their contributions.
#include "belay/parallel/bucket/gradient_states.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace {

using belay::gradient_event;
using belay::gradient_phase;
using belay::gradient_states;

struct transition {
  gradient_phase from;
  gradient_event event;
  gradient_phase to;
};

// All that there are: what is not here is refused.
constexpr transition transitions[] = {
    {gradient_phase::consumed, gradient_event::begun, gradient_phase::open},
    {gradient_phase::reduced, gradient_event::begun, gradient_phase::open},
    {gradient_phase::open, gradient_event::contributed, gradient_phase::adding},
    {gradient_phase::adding, gradient_event::contributed, gradient_phase::adding},
    {gradient_phase::open, gradient_event::completed, gradient_phase::reducing},
    {gradient_phase::adding, gradient_event::completed, gradient_phase::reducing},
    {gradient_phase::reducing, gradient_event::over, gradient_phase::reduced},
    {gradient_phase::reduced, gradient_event::applied, gradient_phase::consumed},
    {gradient_phase::reduced, gradient_event::discarded, gradient_phase::consumed},
    {gradient_phase::open, gradient_event::abandoned, gradient_phase::reducing},
    {gradient_phase::adding, gradient_event::abandoned, gradient_phase::reducing},
    {gradient_phase::reducing, gradient_event::abandoned, gradient_phase::reducing},
    {gradient_phase::open, gradient_event::withdrawn, gradient_phase::consumed},
    {gradient_phase::adding, gradient_event::withdrawn, gradient_phase::consumed},
    {gradient_phase::reducing, gradient_event::withdrawn, gradient_phase::consumed},
};

consteval bool takes_these_alone() {
  for (std::size_t p = 0; p < belay::gradient_phases; ++p)
    for (std::size_t e = 0; e < belay::gradient_events; ++e) {
      std::optional<gradient_phase> expected;
      for (const transition& each : transitions)
        if (static_cast<std::size_t>(each.from) == p && static_cast<std::size_t>(each.event) == e) expected = each.to;
      if (belay::phase_after(static_cast<gradient_phase>(p), static_cast<gradient_event>(e)) != expected) return false;
    }
  return true;
}
static_assert(takes_these_alone());

gradient_states begun(std::initializer_list<std::size_t> contributions) {
  gradient_states out(contributions.size());
  CHECK(out.begin([&](std::size_t b) { return contributions.begin()[b]; }));
  return out;
}

}  // namespace

TEST_CASE("buckets are started in order, each after its last contribution, whatever the order of contributions") {
  std::vector<std::size_t> order{0, 0, 1, 2, 2, 2};
  std::size_t orders = 0;
  do {
    gradient_states states = begun({2, 1, 3});
    std::vector<std::size_t> left{2, 1, 3};
    std::vector<std::size_t> started;
    for (const std::size_t bucket : order) {
      REQUIRE(states.contribute(bucket));
      --left[bucket];
      CHECK(states.of(bucket) == (left[bucket] == 0 ? gradient_phase::reducing : gradient_phase::adding));
      for (; states.can_start(); states.note_started()) {
        CHECK(left[states.started()] == 0);
        started.push_back(states.started());
      }
    }
    CHECK(started == std::vector<std::size_t>{0, 1, 2});
    for (std::size_t b = 0; b < 3; ++b) CHECK_FALSE(states.contribute(b));  // one too many
    CHECK(states.note_over() == 1);
    CHECK(states.apply(1));
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(orders == 60);
}

TEST_CASE("reduced gradients are taken once, as those of their reduction alone") {
  gradient_states states = begun({1});
  CHECK_FALSE(states.begin([](std::size_t) { return std::size_t{1}; }));  // the step is open
  CHECK_FALSE(states.apply(1));                                           // nothing is reduced
  CHECK(states.contribute(0));
  CHECK(states.in_step());
  CHECK(states.note_over() == 1);
  CHECK_FALSE(states.in_step());
  CHECK(states.holds(1));
  CHECK_FALSE(states.apply(2));
  CHECK(states.apply(1));
  CHECK_FALSE(states.apply(1));
  CHECK_FALSE(states.discard(1));
  CHECK_FALSE(states.holds_any());

  REQUIRE(states.begin([](std::size_t) { return std::size_t{0}; }));  // a step of no contributions
  CHECK(states.of(0) == gradient_phase::reducing);
  CHECK(states.note_over() == 2);
  CHECK_FALSE(states.discard(1));
  CHECK(states.discard(2));
  CHECK_FALSE(states.apply(2));
}

TEST_CASE("a step that is abandoned or withdrawn leaves nothing to take, and the next one begins") {
  gradient_states states = begun({2, 2});
  CHECK(states.contribute(1));
  CHECK(states.abandon());
  for (; states.can_start(); states.note_started()) {
  }
  CHECK(states.started() == 2);  // peers wait for both
  CHECK(states.withdraw());
  CHECK_FALSE(states.withdraw());
  CHECK_FALSE(states.abandon());
  CHECK_FALSE(states.apply(0));
  CHECK_FALSE(states.contribute(0));
  REQUIRE(states.begin([](std::size_t) { return std::size_t{2}; }));
  CHECK(states.started() == 0);
  CHECK(states.of(1) == gradient_phase::open);
  states.recall();
  CHECK(states.started() == 2);
  CHECK(states.note_over() == 1);
  CHECK(states.holds(1));
}

TEST_CASE("a step of no bucket has a state") {
  gradient_states states(0);
  CHECK_FALSE(states.in_step());
  REQUIRE(states.begin([](std::size_t) { return std::size_t{1}; }));
  CHECK(states.in_step());
  CHECK_FALSE(states.can_start());
  CHECK(states.note_over() == 1);
  CHECK(states.apply(1));
}
