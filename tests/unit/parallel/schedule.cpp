// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/schedule.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "belay/parallel/proof.hpp"

namespace schedule = belay::schedule;
using schedule::action;
using schedule::action_kind;
using schedule::payload;

namespace {

std::vector<std::string> kinds_of(const schedule::dynamic_table& table, std::size_t stage) {
  std::vector<std::string> seen;
  for (const action& now : table.actions(stage)) {
    if (!now.is_exchange()) seen.push_back("FBIW"[static_cast<int>(now.kind)] + std::to_string(now.micro_batch));
  }
  return seen;
}

std::string refusal(const std::string& text) {
  try {
    (void)schedule::from_csv(text);
  } catch (const belay::input_error& refused) {
    return refused.what();
  }
  return "accepted";
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Idle share of equal stages, as the exact fraction (p - 1) / (m + p - 1): nothing but integers.
template <std::size_t Stages, class Table>
constexpr bool idle_is_the_formula(const Table& table) {
  std::array<std::int64_t, Stages> forward{};
  std::array<std::int64_t, Stages> backward{};
  for (std::size_t stage = 0; stage < Stages; ++stage) {
    forward[stage] = 1;
    backward[stage] = 2;
  }
  schedule::timeline_player<Table, std::int64_t> player(table);
  const auto& played = player.play(forward, backward);
  std::int64_t idle = 0;
  for (std::size_t stage = 0; stage < Stages; ++stage) idle += played.total - played.busy[stage];
  const auto p = static_cast<std::int64_t>(Stages);
  const auto m = static_cast<std::int64_t>(table.micro_batches());
  return idle * (m + p - 1) == (p - 1) * played.total * p;
}

constexpr auto f1b1_4_16 = schedule::one_f_one_b<4, 16>();
constexpr auto gpipe_4_16 = schedule::gpipe<4, 16>();
static_assert(idle_is_the_formula<4>(f1b1_4_16));
static_assert(idle_is_the_formula<4>(gpipe_4_16));

}  // namespace

TEST_CASE("1F1B alternates once its pipeline is full and GPipe does not") {
  CHECK(kinds_of(schedule::one_f_one_b(2, 3), 0) == std::vector<std::string>{"F0", "F1", "B0", "F2", "B1", "B2"});
  CHECK(kinds_of(schedule::one_f_one_b(2, 3), 1) == std::vector<std::string>{"F0", "B0", "F1", "B1", "F2", "B2"});
  CHECK(kinds_of(schedule::gpipe(2, 3), 1) == std::vector<std::string>{"F0", "F1", "F2", "B0", "B1", "B2"});
}

TEST_CASE("one stage exchanges nothing") {
  for (std::size_t micro_batches : {1U, 2U, 5U}) {
    for (const auto& table : {schedule::one_f_one_b(1, micro_batches), schedule::gpipe(1, micro_batches)}) {
      CHECK(table.actions(0).size() == 2 * micro_batches);
      for (const action& now : table.actions(0)) CHECK_FALSE(now.is_exchange());
    }
  }
}

TEST_CASE("an activation and a gradient that are made together travel in one exchange") {
  // Rank 0 runs its third forward while rank 1 runs the first input gradient.
  const auto table = schedule::named_table("zb-h2", 2, 4);
  const action together = action::exchange().send(payload::activation, 2, 1).receive(payload::gradient, 0, 1);
  const auto row = table.actions(0);
  CHECK(std::find(row.begin(), row.end(), together) != row.end());
}

TEST_CASE("the table made while compiling is the table made at start-up") {
  CHECK(schedule::one_f_one_b<1, 1>() == schedule::one_f_one_b(1, 1));
  CHECK(schedule::one_f_one_b<4, 16>() == schedule::one_f_one_b(4, 16));
  CHECK(schedule::one_f_one_b<5, 3>() == schedule::one_f_one_b(5, 3));
  CHECK(schedule::gpipe<3, 7>() == schedule::gpipe(3, 7));
  CHECK(schedule::to_dynamic(gpipe_4_16) == gpipe_4_16);
  CHECK_FALSE(schedule::gpipe<3, 7>() == schedule::one_f_one_b(3, 7));
  CHECK(f1b1_4_16.name() == "1f1b");
}

TEST_CASE("a schedule over nothing is refused in words") {
  CHECK_THROWS_AS((void)schedule::one_f_one_b(0, 4), belay::usage_error);
  CHECK_THROWS_AS((void)schedule::gpipe(4, 0), belay::usage_error);
  CHECK_THROWS_AS((void)schedule::make_table("none", 4, {}), belay::usage_error);
  action full = action::exchange();
  for (std::size_t i = 0; i < action::most_transfers; ++i) full.send(payload::activation, i, 1);
  CHECK_THROWS_AS(full.send(payload::activation, 4, 1), belay::usage_error);
  action forward = action::compute(action_kind::forward, 0);
  CHECK_THROWS_AS(forward.send(payload::activation, 0, 1), belay::usage_error);
}

TEST_CASE("with equal stages the idle share is (p - 1) / (m + p - 1)") {
  for (std::size_t p = 1; p <= 8; ++p) {
    const std::vector<double> forward(p, 1.0);
    const std::vector<double> backward(p, 2.0);
    for (std::size_t m = 1; m <= 32; ++m) {
      for (const auto& table : {schedule::one_f_one_b(p, m), schedule::gpipe(p, m)}) {
        CAPTURE(table.name());
        CAPTURE(p);
        CAPTURE(m);
        const auto played = schedule::timeline(table, forward, backward);
        // Whole numbers, exact in doubles: total 3 (m + p - 1), of which every stage computes 3 m.
        REQUIRE(played.total == 3.0 * static_cast<double>(m + p - 1));
        for (std::size_t stage = 0; stage < p; ++stage) REQUIRE(played.busy[stage] == 3.0 * static_cast<double>(m));
        REQUIRE(played.idle() == doctest::Approx(static_cast<double>(p - 1) / static_cast<double>(m + p - 1)));
        REQUIRE(played.bubble() <= played.idle());
      }
    }
  }
}

TEST_CASE("busy, waiting and end of each stage add up, and waiting is where the drawing shows it") {
  const auto table = schedule::one_f_one_b(2, 2);
  // stage 0: F0 F1 .  B0 B0 .  B1 B1     stage 1: .  F0 B0 B0 F1 B1 B1
  const std::vector<double> forward{1, 1};
  const std::vector<double> backward{2, 2};
  const auto played = schedule::timeline(table, forward, backward);
  CHECK(played.total == 9);
  CHECK(played.end == std::vector<double>{9, 7});
  CHECK(played.busy == std::vector<double>{6, 6});
  CHECK(played.waiting == std::vector<double>{3, 1});
  CHECK(played.bubble() == doctest::Approx((3.0 / 9 + 1.0 / 7) / 2));
  CHECK(played.idle() == doctest::Approx(1.0 / 3));
}

TEST_CASE("a slow stage makes the others wait and never itself") {
  const std::vector<double> forward{1, 3, 1};
  const std::vector<double> backward{2, 6, 2};
  for (const auto& table : {schedule::one_f_one_b(3, 16), schedule::gpipe(3, 16)}) {
    const auto played = schedule::timeline(table, forward, backward);
    CHECK(played.busy[1] == 16 * 9);
    CHECK(played.waiting[1] < 8);
    CHECK(played.waiting[0] > 16 * 5);
    CHECK(played.total >= 16 * 9 + 1 + 2);
  }
}

TEST_CASE("times of zero give no bubble instead of a division by zero") {
  const std::vector<double> nothing(3, 0.0);
  const auto played = schedule::timeline(schedule::one_f_one_b(3, 4), nothing, nothing);
  CHECK(played.total == 0);
  CHECK(played.bubble() == 0);
  CHECK(played.idle() == 0);
}

TEST_CASE("a player gives the same answer again and again") {
  const auto table = schedule::one_f_one_b(4, 8);
  schedule::timeline_player player(table);
  const std::vector<double> forward{1, 2, 1, 1.5};
  const std::vector<double> backward{2, 3, 2.5, 2};
  const double first = player.play(forward, backward).total;
  const double* const buffer = player.play(forward, backward).busy.data();
  for (int i = 0; i < 3; ++i) {
    const auto& again = player.play(forward, backward);
    CHECK(again.total == first);
    CHECK(again.busy.data() == buffer);
  }
  CHECK_THROWS_AS((void)player.play(std::vector<double>{1, 2}, backward), belay::usage_error);
}

TEST_CASE("a player refuses a table that cannot run and says why") {
  const auto broken = schedule::make_table("broken", 1, {{action::compute(action_kind::forward, 0)}});
  try {
    schedule::timeline_player player(broken);
    FAIL("accepted");
  } catch (const belay::usage_error& refused) {
    CHECK(holds(refused.what(), "stage 0 never runs the backward of micro-batch 0"));
  }
}

TEST_CASE("what is written as CSV is read back as the same table") {
  for (std::size_t p : {1U, 2U, 3U, 8U}) {
    for (std::size_t m : {1U, 2U, 11U}) {
      for (const auto& table : {schedule::one_f_one_b(p, m), schedule::gpipe(p, m)}) {
        const auto read = schedule::from_csv(schedule::to_csv(table));
        CHECK(read == table);
        CHECK(read.name() == table.name());
      }
    }
  }
  CHECK(schedule::to_csv(schedule::one_f_one_b(2, 2)) ==
        "belay-schedule 1,1f1b,2,2\n"
        "F0,SA0>1,F1,SA1>1,RG0<1,B0,RG1<1,B1\n"
        "RA0<0,F0,RA1<0,B0,SG0>0,F1,B1,SG1>0\n");
}

TEST_CASE("CSV with blanks, Windows line ends, chunks and split backwards is read") {
  const auto table = schedule::from_csv("belay-schedule 1, mine , 1,2\r\n F0, F1.2 ,I0,W0,B1\r\n\r\n");
  CHECK(table.name() == "mine");
  REQUIRE(table.actions(0).size() == 5);
  CHECK(table.actions(0)[1] == action::compute(action_kind::forward, 1, 2));
  CHECK(table.actions(0)[2].kind == action_kind::input_gradient);
  CHECK(table.actions(0)[3].kind == action_kind::weight_gradient);
  CHECK(schedule::from_csv(schedule::to_csv(table)) == table);
}

TEST_CASE("tables with chunks are written with their placement and read back") {
  const auto check = [](const schedule::dynamic_table& table, const std::string& head) {
    const std::string text = schedule::to_csv(table);
    CHECK(text.substr(0, text.find('\n')) == head);
    CHECK(schedule::from_csv(text) == table);
    CHECK(schedule::to_csv(schedule::from_csv(text)) == text);
  };
  check(schedule::generate(schedule::interleaved_rule{3}, 2, 4), "belay-schedule 2,interleaved,2,4,3,loop");
  check(schedule::generate(schedule::zb_v_rule{}, 3, 5), "belay-schedule 2,zb-v,3,5,2,v");
  // Stages of one's own: rank 0 has the inner two.
  const auto inner = [](std::size_t rank, std::size_t chunk, std::size_t) {
    return rank == 0 ? chunk + 1 : 3 * chunk;
  };
  using lists = std::vector<std::vector<action>>;
  const auto compute = [](action_kind kind, std::size_t chunk) { return action::compute(kind, 0, chunk); };
  const auto f = action_kind::forward, b = action_kind::backward;
  const lists computes = {{compute(f, 0), compute(f, 1), compute(b, 1), compute(b, 0)},
                          {compute(f, 0), compute(f, 1), compute(b, 1), compute(b, 0)}};
  const auto own = schedule::with_exchanges(schedule::make_table("own", 1, computes, 2, inner));
  CHECK(belay::proof(own).valid());
  check(own, "belay-schedule 2,own,2,1,2,1 2;0 3");
  CHECK_THROWS_AS((void)schedule::make_table("twice", 1, computes, 2,
                                             [](std::size_t, std::size_t chunk, std::size_t) { return chunk; }),
                  belay::usage_error);
}

TEST_CASE("a table without transfers gets those that let it run") {
  const auto table = schedule::from_csv("belay-schedule 1,1f1b,2,2\nF0,F1,B0,B1\nF0,B0,F1,B1\n");
  CHECK(table == schedule::one_f_one_b(2, 2));
  CHECK_THROWS_WITH_AS(
      (void)schedule::from_csv("belay-schedule 2,x,2,1,2,loop\nF0,F0.1,B0.1,B0\nF0.1,B0.1,F0,B0\n"),
      doctest::Contains("wait for each other: rank 0 waits before the forward of micro-batch 0 in stage 2"),
      belay::usage_error);
}

TEST_CASE("a table that lacks computes is left as it is: its proof names them") {
  const auto table = schedule::from_csv("belay-schedule 1,x,2,2\nF0,F1,B0,B1\nF0,B0,F1\n");
  CHECK(table.actions(0).size() == 4);
  CHECK(belay::proof(table).reason.kind == schedule::fault_kind::backward_missing);
  CHECK(holds(refusal("65535F1048575\n0F0\n"), "must not exceed"));
}

TEST_CASE("PyTorch's tables of computes are read: stages, halves, waits and pairs") {
  const auto table = schedule::from_csv("0F0,0F1,,1F0,(1F1;1I0)OVERLAP_F_B,1W0,1B1,0B0,0B1\n");
  CHECK(table.ranks() == 1);
  CHECK(table.chunks() == 2);
  CHECK(table.micro_batches() == 2);
  CHECK(table.actions(0)[4] == action::compute(action_kind::input_gradient, 0, 1));
  CHECK(belay::proof(table).valid());

  // PyTorch's table of ZB-V of two ranks: stages 0 and 3, 1 and 2.
  std::string text;
  const auto v = schedule::generate(schedule::zb_v_rule{}, 2, 4);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const action& next : v.actions(rank)) {
      if (next.is_exchange()) continue;
      text += std::to_string(v.stage(rank, next.chunk)) + "FBIW"[static_cast<int>(next.kind)] +
              std::to_string(next.micro_batch) + ",";
    }
    text += "\n";
  }
  CHECK(schedule::from_csv(text) == v);

  // Backwards in falling order, as PyTorch's looped schedule has them, would add gradients in another order.
  const auto falling = schedule::from_csv("0F0,0F1,0B1,0B0\n");
  CHECK(belay::proof(falling).reason.kind == schedule::fault_kind::backward_out_of_order);

  CHECK(holds(refusal("0F0,0X0\n"), "row 1, column 2: '0X0' is no compute"));
  CHECK(holds(refusal("0F0,0SEND_F0\n"), "is no compute"));
  CHECK(holds(refusal("0F0,0B0\n0F1\n"), "each rank holds as many stages"));
  CHECK(holds(refusal("0F0,0B0\n0F1,1F0,1B0\n"), "row of rank 1: stage 0 is in two rows"));
  CHECK(holds(refusal("0F0,1F0\n2F0,3F0,(2F0;3F0\n"), "row 2, column 3"));
  CHECK(holds(refusal("0F0,1F0,2F0\n3F0\n"), "row of rank 0: the row has 3 stages, and a rank holds 2"));
  CHECK(holds(refusal("belay-schedule 2,x,2,2,2\n"), "is no placement"));
  CHECK(holds(refusal("belay-schedule 2,x,2,2,2,0 1;1 2\n"), "each stage once"));
  CHECK(holds(refusal("belay-schedule 2,x,2,2,2,0 1;2 3 4\n"), "more stages than there are"));
  CHECK(holds(refusal("belay-schedule 2,x,2,2,0,v\n"), "the number of chunks must be between 1"));
}

TEST_CASE("CSV that cannot be read is refused with row and column") {
  const std::string head = "belay-schedule 1,x,2,2\n";
  CHECK(holds(refusal(""), "row 1, column 1: expected 'belay-schedule 1'"));
  CHECK(holds(refusal("belay-schedule 1,x,0,2\n"), "row 1, column 3: the number of stages must be between 1"));
  CHECK(holds(refusal("belay-schedule 1,x,2\n"), "row 1, column 4: the number of micro-batches"));
  CHECK(holds(refusal("belay-schedule 1,x,2,99999999999999999999999\n"), "row 1, column 4"));
  CHECK(holds(refusal("belay-schedule 1,x,65536,1048576\n"), "must not exceed 16777216"));
  CHECK(holds(refusal("belay-schedule 1,x,2,2,2\n"), "the first row ends"));
  CHECK(holds(refusal(head + "F0,B0\n"), "row 3, column 1: the row of stage 1 is missing"));
  CHECK(holds(refusal(head + "F0,X1\nF0\n"), "row 2, column 2: 'X1' is no action"));
  CHECK(holds(refusal(head + "F0,,B0\nF0\n"), "row 2, column 2: '' is no action"));
  CHECK(holds(refusal(head + "F0\nF0,F\n"), "row 3, column 2"));
  CHECK(holds(refusal(head + "F0\nF-1\n"), "row 3, column 1"));
  CHECK(holds(refusal(head + "F0\nF1.70000\n"), "row 3, column 1"));
  CHECK(holds(refusal(head + "F0\nSA0<1\n"), "row 3, column 1: 'SA0<1'"));
  CHECK(holds(refusal(head + "F0\nSA0>1+\n"), "row 3, column 1"));
  CHECK(holds(refusal(head + "F0\nSA0>1RG0<1\n"), "row 3, column 1"));
  CHECK(holds(refusal(head + "F0\nSA0>1+SA1>1+SA2>1+SA3>1+SA4>1\n"), "at most 4 transfers"));
  CHECK(holds(refusal(head + "F0\nF0\nF0\n"), "row 4, column 1: there are more rows"));
  CHECK_THROWS_AS((void)schedule::to_csv(schedule::make_table("a,b", 1, {{}})), belay::usage_error);
}

TEST_CASE("sizes of a schedule that wrap round, or are beyond what a schedule has, are refused") {
  constexpr std::size_t half = std::size_t{1} << 32;
  for (const auto& [stages, micro_batches] : {std::pair{half, half}, std::pair{std::size_t{2}, SIZE_MAX},
                                              std::pair{SIZE_MAX, std::size_t{1}}, std::pair{half, std::size_t{1}}}) {
    CHECK_THROWS_WITH_AS(static_cast<void>(belay::schedule::one_f_one_b(stages, micro_batches)),
                         doctest::Contains("at most are 65536 stages"), belay::usage_error);
    CHECK_THROWS_AS(static_cast<void>(belay::schedule::gpipe(stages, micro_batches)), belay::usage_error);
  }
  // A table that was made by hand: two stages' lists, and so many micro-batches that its cells wrap round to none.
  const belay::schedule::dynamic_table table("huge", 2, SIZE_MAX / 2 + 1, {}, {0, 0, 0});
  CHECK_THROWS_AS(static_cast<void>(belay::proof(table)), belay::size_error);
}
