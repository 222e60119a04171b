// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Schedules by name, the greedy one beside what was published of such, and the choice among all by times and bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule.hpp"
#include "unit/schedule/support/published_settings.hpp"

namespace schedule = belay::schedule;
using schedule::staged_costs;
using schedule::ticks;
using test::published_setting;

namespace {

// A network whose layers take so long, cut into equal stages. Times of a rank are given: a chunk takes its part.
std::optional<staged_costs> cut(std::size_t ranks, const schedule::stage_costs& rank, ticks message,
                                const schedule::stage_bytes& kept, const schedule::placement& placed,
                                ticks saved_by_pair = 0) {
  const auto chunks = static_cast<ticks>(placed.chunks);
  const auto parts = static_cast<std::uint64_t>(placed.chunks);
  if (rank.forward % chunks != 0) return std::nullopt;
  const std::size_t stages = ranks * placed.chunks;
  return staged_costs{
      {std::vector<schedule::stage_costs>(
           stages, {rank.forward / chunks, rank.input_gradient / chunks, rank.weight_gradient / chunks}),
       message, saved_by_pair},
      std::vector<schedule::stage_bytes>(stages, {kept.for_input_gradient / parts, kept.for_weight_gradient / parts})};
}

struct question {
  std::size_t ranks = 4;
  std::size_t micro_batches = 16;
  schedule::stage_costs times{24, 24, 24};
  ticks message = 0;
  std::uint64_t budget = 1'000'000;
  schedule::stage_bytes kept{12'000, 6'000};  // of a micro-batch, on a rank
  ticks saved_by_pair = 0;
};
schedule::schedule_choice answer(const question& of) {
  const std::vector<std::uint64_t> budget(of.ranks, of.budget);
  return schedule::choose(of.micro_batches, budget, [&](const schedule::placement& placed) {
    return cut(of.ranks, of.times, of.message, of.kept, placed, of.saved_by_pair);
  });
}

std::string reason(const schedule::schedule_choice& of, const std::string& name) {
  for (const auto& each : of.refused)
    if (each.name == name) return each.reason;
  return "not refused";
}

}  // namespace

TEST_CASE("every name makes its table, and others are refused with the names that there are") {
  for (const std::string& name : schedule::named_schedule::names(3)) {
    CAPTURE(name);
    const auto table = schedule::named_table(name, 3, 6);
    CHECK(belay::proof(table).valid());
    CHECK(table.chunks() == schedule::named_schedule::of(name).placed().chunks);
  }
  CHECK(schedule::named_table("1f1b", 3, 5) == schedule::one_f_one_b(3, 5));
  CHECK(schedule::named_table("interleaved:2:4", 2, 8) == schedule::generate(schedule::interleaved_rule{2, 4}, 2, 8));
  for (const char* wrong : {"", "1F1B", "interleaved", "interleaved:", "interleaved:0", "interleaved:2:", "zb-v:2",
                            "bfs:2:2", "interleaved:2:3:4", "bfs:x", ":2"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(static_cast<void>(schedule::named_table(wrong, 2, 4)), doctest::Contains("is no schedule"),
                         belay::input_error);
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::named_table("interleaved:2:2", 4, 8)),
                       doctest::Contains("groups of 2 micro-batches on 4 ranks"), belay::usage_error);
}

TEST_CASE("the greedy schedule is at most 0.0005 behind the published automatic ones in each of twelve settings") {
  for (const published_setting& each : test::published_settings) {
    CAPTURE(each.ranks);
    CAPTURE(each.micro_batches);
    CAPTURE(each.forward);
    const staged_costs costs{
        {std::vector<schedule::stage_costs>(each.ranks, {each.forward, each.input, each.weight}), each.message},
        std::vector<schedule::stage_bytes>(each.ranks, {each.bytes_for_input(), each.bytes_for_weight()})};
    const auto rate = [&](ticks took) {
      const ticks ideal = static_cast<ticks>(each.micro_batches) * (each.forward + each.input + each.weight);
      return static_cast<double>(took - ideal) / static_cast<double>(took);
    };
    const auto found = [&](std::size_t units, schedule::greedy_goal goal) {
      const std::vector<std::uint64_t> budget(each.ranks, units * each.bytes_for_input() + each.bytes_for_weight());
      const auto table = schedule::greedy_table(each.micro_batches, costs, budget, goal);
      REQUIRE(table.has_value());
      CHECK(belay::proof(*table).valid());
      const auto peaks = schedule::peak_bytes(schedule::compute_lists(*table), costs.kept);
      CHECK(*std::max_element(peaks.begin(), peaks.end()) <= budget[0]);
      return schedule::cost_of(*table, costs.time);
    };
    CHECK(rate(found(each.ranks, schedule::greedy_goal::total).total) <= each.zb_1p + 0.0005 + 0.00005);
    CHECK(rate(found(2 * each.ranks, schedule::greedy_goal::longest).longest) <= each.zb_2p + 0.0005 + 0.00005);
  }
}

TEST_CASE("with memory for all, the shortest is chosen; with less, what fits; V-Min only where nothing else does") {
  question of;
  const auto rich = answer(of);
  CHECK(rich.cost.total == 16 * 72 + 3 * 6);  // a bubble of p - 1 quarters of a forward
  CHECK(rich.name == "interleaved-zb:4");
  CHECK(belay::proof(rich.table).valid());
  CHECK(reason(rich, "1f1b").find("takes 1368, and ") == 0);

  // Within what 1F1B keeps, and half of it: no worse than the table that was made for that.
  const auto total = [&](const std::string& name) {
    const auto table = schedule::named_table(name, of.ranks, of.micro_batches);
    const auto chunks = static_cast<ticks>(table.chunks());
    return schedule::cost_of(table, schedule::equal_costs{{24 / chunks, 24 / chunks, 24 / chunks}, 0}).total;
  };
  of.kept = {12'000, 12'000};
  of.budget = 12'000 * 5;
  CHECK(answer(of).cost.total <= total("zb-h1"));
  of.budget = 12'000 * 3 + 6'000;
  const auto half = answer(of);
  CHECK(half.cost.total <= total("v-half"));
  CHECK(reason(half, "zb-h1").find("on rank ") != std::string::npos);
  of.budget = 12'000 * 2 + 6'000;
  const auto third = answer(of);
  CHECK(third.name == "v-min");
  CHECK(reason(third, "greedy").find("takes ") == 0);
  MESSAGE("half: ", half.name, " ", half.cost.total, ", v-half ", total("v-half"), ", v-min ", total("v-min"));
  of.budget = 12'000;
  CHECK_THROWS_WITH_AS(static_cast<void>(answer(of)), doctest::Contains("fits: "), belay::usage_error);
}

TEST_CASE("DualPipeV of pairs is taken where a pair saves enough, and refused with what would be enough") {
  question of;
  of.ranks = 8;
  of.micro_batches = 32;
  of.times = {2400, 2400, 2400};  // a unit is 1200, and (p - 1) / (2 m - p - 2) of it 155.6
  of.message = 100;               // schedules of many chunks send more
  CHECK(reason(answer(of), "dualpipe-v:atomic") == "saves 0 a pair, and pays above 155");
  of.saved_by_pair = 155;
  CHECK(reason(answer(of), "dualpipe-v:atomic") == "saves 155 a pair, and pays above 155");
  of.saved_by_pair = 156;
  CHECK(reason(answer(of), "dualpipe-v:atomic").find("takes ") == 0);  // judged by its time
  of.saved_by_pair = 1000;
  const auto found = answer(of);
  CHECK(found.name == "dualpipe-v:atomic");
  CHECK(found.cost.total < 32 * 7200);  // less than its computes one after the other
  CHECK(belay::proof(found.table).valid());
}

TEST_CASE("at times with which V-Min is slower than 1F1B it is not chosen where that fits") {
  question of;
  of.ranks = 8;
  of.micro_batches = 32;
  of.times = {11346, 11248, 8132};
  of.message = 377;
  of.budget = 12'000 * 8;
  const auto found = answer(of);
  CHECK(found.name != "v-min");
  CHECK(reason(found, "v-min").find("takes ") == 0);
}

TEST_CASE("a budget of one rank decides, and stages may differ") {
  // The last rank has a head: half as much again to compute, and twice to keep.
  const std::size_t ranks = 4, micro_batches = 16;
  const auto costs = [&](const schedule::placement& placed) -> std::optional<staged_costs> {
    if (placed.chunks > 1) return std::nullopt;
    staged_costs made{{std::vector<schedule::stage_costs>(ranks, {20, 20, 10}), 1},
                      std::vector<schedule::stage_bytes>(ranks, {100, 50})};
    made.time.stages.back() = {30, 30, 15};
    made.kept.back() = {200, 100};
    return made;
  };
  const auto with = [&](std::vector<std::uint64_t> budget) { return schedule::choose(micro_batches, budget, costs); };
  const auto rich = with({4000, 4000, 4000, 4000});
  CHECK(reason(rich, "zb-v") == "has more stages than the network has layers");
  const auto poor = with({450, 4000, 4000, 4000});
  CHECK(poor.cost.total >= rich.cost.total);
  CHECK(poor.bytes[0] <= 450);
  CHECK(reason(poor, "gpipe") == "keeps 1600 bytes on rank 0, which has 450");
  const auto again = with({450, 4000, 4000, 4000});
  CHECK(again.table == poor.table);
}

TEST_CASE("what a rank has always, and what is kept from forward to weight gradient, count against its budget") {
  const std::size_t ranks = 4, micro_batches = 16;
  const auto of = [&](const schedule::stage_bytes& kept, std::vector<std::uint64_t> always, std::uint64_t budget) {
    const std::vector<std::uint64_t> each(ranks, budget);
    return schedule::choose(micro_batches, each, [&](const schedule::placement& placed) -> std::optional<staged_costs> {
      if (placed.chunks > 1) return std::nullopt;
      return staged_costs{{std::vector<schedule::stage_costs>(ranks, {20, 20, 20}), 0},
                          std::vector<schedule::stage_bytes>(ranks, kept),
                          always};
    });
  };
  // Kept to its end a micro-batch of ZB-H1 counts once, p on every rank: no more than 1F1B's first rank has.
  CHECK(of({.for_both = 100}, {}, 400).name == "zb-h1");
  CHECK(of({.for_both = 100}, {}, 400).bytes == std::vector<std::uint64_t>{400, 400, 400, 400});
  // Where an input gradient needs both parts at once, it does not fit.
  CHECK(reason(of({100, 100, 0}, {}, 400), "zb-h1").find("keeps ") == 0);
  // The first rank has parameters, and the last rank has so many that one micro-batch fits beside them.
  const auto full = of({.for_both = 100}, {50, 0, 0, 300}, 450);
  CHECK(full.bytes[0] <= 450);
  CHECK(full.bytes[3] == 400);
  CHECK(reason(full, "zb-h1") == "keeps 700 bytes on rank 3, which has 450");
  // Those that fit and are longer have their time.
  for (const auto& each : full.refused) {
    CAPTURE(each.name);
    CHECK((each.total > 0) == (each.reason.find("takes ") == 0));
    if (each.total > 0) CHECK(each.total >= full.cost.total);
  }
}
