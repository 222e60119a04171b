// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Every rule's table is proven: while compiling, as a user does it, and at run time for every size, fewer micro-batches
// than ranks included. A plain simulator judges its time where no formula is known.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule.hpp"
#include "unit/schedule/support/closed_forms.hpp"
#include "unit/schedule/support/every_rule.hpp"
#include "unit/schedule/support/naive_timeline.hpp"

namespace schedule = belay::schedule;
using schedule::ticks;
using test::units;

namespace {

// Tables that a user proves, of each rule, within default limits.
template <auto Rule>
constexpr bool is_proven = belay::proof(schedule::generate<Rule, 8, 32>()).valid();
static_assert(is_proven<schedule::interleaved_rule{2}>);
static_assert(is_proven<schedule::interleaved_rule{3}>);
static_assert(is_proven<schedule::breadth_first_rule{2}>);
static_assert(is_proven<schedule::interleaved_zero_bubble_rule{2}>);
static_assert(is_proven<schedule::zb_h1_rule{}>);
static_assert(is_proven<schedule::zb_h2_rule{}>);
static_assert(is_proven<schedule::zb_v_rule{}>);
static_assert(is_proven<schedule::dualpipe_v_rule{}>);
static_assert(is_proven<schedule::dualpipe_v_atomic_rule{}>);
static_assert(is_proven<schedule::v_half_rule{}>);
static_assert(is_proven<schedule::v_min_rule{}>);

}  // namespace

TEST_CASE("every table of every size is proven, ends without a buffer, and takes what a plain simulator says") {
  test::for_each_rule([](const auto& rule, const std::string& name) {
    for (std::size_t p = 1; p <= 7; ++p) {
      for (std::size_t m = schedule::least_micro_batches(rule, p); m <= 17; ++m) {
        CAPTURE(name);
        CAPTURE(p);
        CAPTURE(m);
        const auto table = schedule::generate(rule, p, m);
        const auto proven = belay::proof(table);
        REQUIRE_MESSAGE(proven.valid(), belay::explain(proven.reason));
        const auto found = schedule::cost_of(table, schedule::equal_costs{{3, 2, 4}, 1, 2});
        const auto judged = test::naive_timeline(table, 3, 2, 4, 1, test::forgets::nothing, 2);
        REQUIRE(judged.ended);
        REQUIRE(found.total == judged.total);
        REQUIRE(found.longest == judged.longest);
        REQUIRE(found.peak == judged.peak);
        REQUIRE(proven.peak == judged.peak);
      }
    }
  });
}

TEST_CASE(
    "with aligned times no rank waits for a meeting: the table takes its closed form though nothing is buffered") {
  for (const std::size_t p : {2U, 3U, 4U, 8U}) {
    const auto expect = [&](const auto& rule) {
      const auto table = schedule::generate(rule, p, 4 * p);
      const std::vector<ticks> forward(table.stages(), 1), backward(table.stages(), 2);
      schedule::timeline_player<schedule::dynamic_table, ticks> player(table);
      CAPTURE(table.name());
      CAPTURE(p);
      CHECK(player.play(forward, backward).total == schedule::cost_of(table, units).total);
    };
    expect(schedule::gpipe_rule{});
    expect(schedule::one_f_one_b_rule{});
    expect(schedule::breadth_first_rule{2});
    expect(schedule::interleaved_zero_bubble_rule{2});
    expect(schedule::zb_h1_rule{});
    expect(schedule::zb_h2_rule{});
    expect(schedule::zb_v_rule{});
    expect(schedule::v_half_rule{});
    expect(schedule::v_min_rule{});
  }
}

TEST_CASE(
    "a depth of its edges at which each table takes no longer than its computes, and every table runs with none") {
  test::for_each_rule([](const auto& rule, const std::string& name) {
    for (const std::size_t p : {2U, 4U, 5U}) {
      const auto table = schedule::generate(rule, p, 4 * p);
      for (const auto& costs : {units, schedule::equal_costs{{3, 4, 2}, 0}, schedule::equal_costs{{5, 3, 3}, 1, 2}}) {
        CAPTURE(name);
        CAPTURE(p);
        const schedule::table_costs all{std::vector<schedule::stage_costs>(table.stages(), costs.each), costs.message(),
                                        costs.pair_saves()};
        const schedule::edge_depths found = schedule::find_depths(table, all);
        CHECK(found.to_run == 0);
        const ticks total = schedule::cost_of(table, costs).total;
        CHECK(schedule::time_with_depth(table, all, table.micro_batches()) == total);
        if (found.to_reach_total == 0) continue;
        CHECK(schedule::time_with_depth(table, all, found.to_reach_total) == total);
        if (found.to_reach_total > 1) CHECK(schedule::time_with_depth(table, all, found.to_reach_total - 1) != total);
      }
    }
  });
}

TEST_CASE("the depths that interleaved tables need at equal times are those of messages on their way") {
  const auto depth = [](const auto& rule) {
    const auto table = schedule::generate(rule, 8, 32);
    return schedule::find_depths(table, {std::vector<schedule::stage_costs>(table.stages()), 0}).to_reach_total;
  };
  CHECK(depth(schedule::one_f_one_b_rule{}) == 0);
  CHECK(depth(schedule::zb_v_rule{}) == 0);
  CHECK(depth(schedule::v_min_rule{}) == 0);
  CHECK(depth(schedule::interleaved_rule{2}) <= 3);
  CHECK(depth(schedule::dualpipe_v_rule{}) <= 2);
  MESSAGE("interleaved:2 ", depth(schedule::interleaved_rule{2}), ", dualpipe-v ", depth(schedule::dualpipe_v_rule{}));
}
