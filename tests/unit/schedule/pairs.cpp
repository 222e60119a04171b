// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A forward of one micro-batch beside a backward of another, as one action: DualPipeV of such pairs, its time, its text
// and what can be wrong with a pair.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule.hpp"
#include "unit/schedule/support/closed_forms.hpp"

namespace schedule = belay::schedule;
using schedule::action;
using schedule::action_kind;
using schedule::fault_kind;
using schedule::ticks;

namespace {

// In halves of a unit: a forward takes two, and a pair `pair_halves` instead of six.
constexpr ticks atomic_total(std::size_t p, std::size_t m, ticks pair_halves) {
  return schedule::cost_of(schedule::dualpipe_v_atomic_rule{}, p, m,
                           schedule::equal_costs{{2, 2, 2}, 0, 6 - pair_halves})
      .total;
}
// T = 6 m + 2 (p - 1) - (2 m - p - 2) (3 - FB)
constexpr bool has_closed_form(std::size_t p, std::size_t m) {
  for (const ticks halves : {6, 5, 4}) {
    const auto ranks = static_cast<ticks>(p), batches = static_cast<ticks>(m);
    const ticks expected = 12 * batches + 4 * (ranks - 1) - (2 * batches - ranks - 2) * (6 - halves);
    if (atomic_total(p, m, halves) != expected) return false;
  }
  return true;
}
static_assert(has_closed_form(2, 4));
static_assert(has_closed_form(4, 8));
static_assert(has_closed_form(4, 10));
static_assert(has_closed_form(4, 16));
static_assert(has_closed_form(8, 16));
static_assert(atomic_total(8, 16, 6) == 2 * 110 && atomic_total(8, 16, 5) == 2 * 99 &&
              atomic_total(8, 16, 4) == 2 * 88);
static_assert(test::is(schedule::dualpipe_v_atomic_rule{}, 4, 8, test::total_of(6 * 8 + 2 * 3, 2 * 4 + 1)));

auto prove(const std::vector<std::vector<action>>& rows, std::size_t micro_batches) {
  return belay::proof(schedule::make_table("pairs", micro_batches, rows));
}
action forward(std::size_t micro_batch) { return action::compute(action_kind::forward, micro_batch); }
action backward(std::size_t micro_batch) { return action::compute(action_kind::backward, micro_batch); }

}  // namespace

TEST_CASE("DualPipeV of pairs has its closed form, and what a chunk keeps, for more ranks too") {
  CHECK(has_closed_form(8, 32));
  CHECK(has_closed_form(16, 64));
  CHECK(atomic_total(16, 64, 6) == 2 * 414);
  CHECK(atomic_total(16, 64, 5) == 2 * 359);
  CHECK(atomic_total(16, 64, 4) == 2 * 304);
  for (const std::size_t p : {2U, 4U, 8U}) {
    const auto found = schedule::cost_of(schedule::dualpipe_v_atomic_rule{}, p, 2 * p, test::units);
    CHECK(found.total == static_cast<ticks>(12 * p + 2 * (p - 1)));
    CHECK(found.peak == 2 * p + 1);
  }
}

TEST_CASE("a pair pays only where it saves more than (p - 1) / (2 m - p - 2) of a unit") {
  // p = 8, m = 16: 7 / 22 = 0.318; in thousandths of a unit.
  const auto total = [](const auto& rule, ticks saved) {
    return schedule::cost_of(rule, 8, 16, schedule::equal_costs{{1000, 1000, 1000}, 0, saved}).total;
  };
  const ticks apart = total(schedule::dualpipe_v_rule{}, 0);
  CHECK(total(schedule::dualpipe_v_atomic_rule{}, 318) > apart);
  CHECK(total(schedule::dualpipe_v_atomic_rule{}, 319) < apart);
}

TEST_CASE("slips of a pair are refused: without a backward, with an exchange in between, with its own backward") {
  CHECK(prove({{forward(0), forward(1).beside_next(), backward(0), backward(1)}}, 2).valid());
  auto found = prove({{forward(0).beside_next(), forward(1), backward(0), backward(1)}}, 2);
  CHECK(found.reason.kind == fault_kind::pair_without_backward);
  CHECK(belay::explain(found.reason) ==
        "stage 0 runs the forward of micro-batch 0 beside a backward, and none comes directly after it (action 0)");
  found = prove({{forward(0).beside_next(), backward(0)}}, 1);
  CHECK(found.reason.kind == fault_kind::pair_of_one_micro_batch);
  CHECK_FALSE(found.complete);
  found = prove({{forward(0).beside_next()}}, 1);
  CHECK(found.reason.kind == fault_kind::pair_without_backward);

  // Stage 0 hands on the activation of 1 when the pair is over, and not between its two.
  auto rows = std::vector<std::vector<action>>(2);
  const auto table = schedule::generate(schedule::dualpipe_v_atomic_rule{}, 2, 4);
  for (std::size_t rank = 0; rank < 2; ++rank)
    rows[rank].assign(table.actions(rank).begin(), table.actions(rank).end());
  std::size_t pairs = 0, followed = 0;
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    if (!rows[0][i].paired) continue;
    ++pairs;
    if (!rows[0][i + 2].is_exchange()) continue;
    ++followed;
    auto apart = rows;
    std::swap(apart[0][i + 1], apart[0][i + 2]);
    const auto refused = belay::proof(schedule::make_table("apart", 4, apart, 2, schedule::stage_in_v));
    CHECK(refused.reason.kind == fault_kind::pair_without_backward);
  }
  CHECK(pairs == 2 * (4 - 2 * 2 + 1) + 1);
  CHECK(followed > 0);
  CHECK_THROWS_WITH_AS(static_cast<void>(backward(0).beside_next()), doctest::Contains("beside the backward after it"),
                       belay::usage_error);
}

TEST_CASE("a gradient that the backward of a pair takes is received before the pair, though its sender waits on") {
  const auto table = schedule::from_csv("belay-schedule 1,waits,2,2\nF0,F1&B0,B1\nF0,B0,F1,B1\n");
  const auto found = belay::proof(table);
  CHECK_MESSAGE(found.valid(), belay::explain(found.reason));
  CHECK(schedule::to_csv(table) ==
        "belay-schedule 1,waits,2,2\nF0,SA0>1,RG0<1,F1&B0,SA1>1,RG1<1,B1\nRA0<0,F0,B0,SG0>0,RA1<0,F1,B1,SG1>0\n");
}

TEST_CASE(
    "pairs are formed of neighbours in a row, where the schedule takes no longer, and weight gradients come after") {
  const auto rows_of = [](const char* name, std::size_t ranks, std::size_t micro_batches) {
    const std::string text = schedule::to_csv(schedule::with_pairs(schedule::named_table(name, ranks, micro_batches)));
    return text.substr(text.find('\n') + 1);
  };
  CHECK(rows_of("1f1b", 1, 4) == "F0,F1&B0,F2&B1,F3&B2,B3\n");
  CHECK(rows_of("zb-h1", 1, 3) == "F0,F1&I0,W0,F2&I1,W1,I2,W2\n");
  CHECK(rows_of("gpipe", 1, 3) == "F0,F1,F2&B0,B1,B2\n");
  CHECK(rows_of("1f1b", 1, 1) == "F0,B0\n");
  std::size_t found = 0;
  for (const std::string& name : schedule::named_schedule::names(3))
    for (const std::size_t ranks : {1U, 2U, 4U}) {
      CAPTURE(name);
      CAPTURE(ranks);
      const auto table = schedule::named_table(name, ranks, 12);
      const auto paired = schedule::with_pairs(table);
      CHECK(belay::proof(paired).valid());
      const auto before = schedule::cost_of(table, test::units), after = schedule::cost_of(paired, test::units);
      CHECK(after.total <= before.total);
      CHECK(after.peak <= before.peak + 1);
      CHECK(schedule::pairs_of(paired) >= schedule::pairs_of(table));
      found += schedule::pairs_of(paired);
      if (name == "1f1b") CHECK(schedule::pairs_of(paired) == (ranks == 1 ? 11 : 0));
      if (schedule::pairs_of(table) > 0) CHECK(paired == table);  // it has pairs of its own
    }
  CHECK(found > 300);
  const schedule::table_costs two{std::vector<schedule::stage_costs>(2), 0, 0};
  CHECK_THROWS_AS(static_cast<void>(schedule::with_pairs(schedule::named_table("1f1b", 1, 4), two)),
                  belay::usage_error);
}

TEST_CASE("lists in which a pair waits for itself have no time") {
  schedule::compute_lists lists(1, 1, 1, schedule::stage_in_loop);
  lists.add(0, schedule::plan_forward_beside_next(0));
  lists.add(0, action_kind::backward, 0, 0);
  CHECK_THROWS_AS(static_cast<void>(schedule::cost_of(lists, test::units)), belay::usage_error);
}

TEST_CASE("a table of pairs is proven, ends without a buffer, and takes what its computes take once edges hold some") {
  const auto table = schedule::generate(schedule::dualpipe_v_atomic_rule{}, 4, 8);
  CHECK(belay::proof(table).valid());
  const schedule::table_costs costs{std::vector<schedule::stage_costs>(table.stages(), {2, 2, 2}), 0, 1};
  const ticks total = schedule::cost_of(table, costs).total;
  const schedule::edge_depths found = schedule::find_depths(table, costs);
  CHECK(found.to_run == 0);
  CHECK(schedule::time_with_depth(table, costs, schedule::find_depths(table, costs).to_reach_total + 1) == total);
  schedule::timeline_player<schedule::dynamic_table, ticks> player(table);
  CHECK(player.play_costs(costs).total >= total);
  CHECK(player.play_costs(costs).busy[0] == 2 * (3 * 2 * 8) - (2 * (8 - 8 + 1) + 3));
}

TEST_CASE("pairs are written and read as text, PyTorch's OVERLAP_F_B too") {
  const auto table = schedule::generate(schedule::dualpipe_v_atomic_rule{}, 2, 4);
  const std::string text = schedule::to_csv(table);
  CHECK(text.find("F3&B1.1") != std::string::npos);
  CHECK(schedule::from_csv(text) == table);
  std::string computes;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    bool in_pair = false;
    for (const action& next : table.actions(rank)) {
      if (next.is_exchange()) continue;
      computes += next.paired ? "(" : "";
      computes += std::to_string(table.stage(rank, next.chunk)) + "FBIW"[static_cast<int>(next.kind)] +
                  std::to_string(next.micro_batch) +
                  (next.paired ? ";"
                   : in_pair   ? ")OVERLAP_F_B,"
                               : ",");
      in_pair = next.paired;
    }
    computes += "\n";
  }
  CHECK(computes.find("(0F3;3B1)OVERLAP_F_B") != std::string::npos);
  CHECK(schedule::from_csv(computes) == table);

  const auto refused = [](const std::string& wrong, const char* why) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(static_cast<void>(schedule::from_csv(wrong)), doctest::Contains(why), belay::input_error);
  };
  for (const char* const wrong :
       {"(0F0)OVERLAP_F_B\n", "(0B0;0F1)OVERLAP_F_B\n", "(0F0;0W1)OVERLAP_F_B\n", "(0F0;0B1;0B0)OVERLAP_F_B\n"})
    refused(wrong, "a pair is a forward and a backward");
  for (const char* const wrong : {"F0&F1", "B0&B1", "F0&W1", "F0&SA0>1", "SA0>1&B0"})
    refused("belay-schedule 1,x,1,2\n" + std::string(wrong) + "\n", "a pair is a forward and a backward");
  refused("belay-schedule 1,x,1,2\nF0&\n", "is no action");
  refused("belay-schedule 1,x,1,3\nF0&B1&B2\n", "is no action");
}
