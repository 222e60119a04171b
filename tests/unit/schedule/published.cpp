// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The bubbles that "Zero Bubble Pipeline Parallelism" (Qi et al., ICLR 2024) prints for twelve settings with measured
// times, to its four digits. Its interleaved column comes from a model in which only the first micro-batch of a group
// waits for what the last rank hands to the first one; with every dependency it is 2 to 3.5 % higher.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

#include "belay/parallel/schedule.hpp"
#include "unit/schedule/support/naive_timeline.hpp"
#include "unit/schedule/support/published_settings.hpp"

namespace schedule = belay::schedule;
using schedule::ticks;
using test::published_setting;

namespace {

// Times of a chunk that is one of `chunks` in a rank, in units of 1 / chunks microseconds: nothing is rounded.
schedule::equal_costs costs_of(const published_setting& of, std::size_t chunks) {
  return {{of.forward, of.input, of.weight}, of.message * static_cast<ticks>(chunks)};
}
int rate(const published_setting& of, std::size_t chunks, ticks took) {
  const ticks ideal = static_cast<ticks>(of.micro_batches * chunks) * (of.forward + of.input + of.weight);
  return static_cast<int>(std::lround(1e4 * static_cast<double>(took - ideal) / static_cast<double>(took)));
}

}  // namespace

TEST_CASE("twelve measured settings have the published bubbles to four digits") {
  for (const published_setting& each : test::published_settings) {
    CAPTURE(each.ranks);
    CAPTURE(each.micro_batches);
    CAPTURE(each.forward);
    const auto cost = [&](const auto& rule, std::size_t chunks) {
      return schedule::cost_of(rule, each.ranks, each.micro_batches, costs_of(each, chunks));
    };
    CHECK(rate(each, 1, cost(schedule::one_f_one_b_rule{}, 1).total) == each.f1b1);
    CHECK(rate(each, 1, cost(schedule::zb_h1_rule{}, 1).total) == each.h1);
    CHECK(rate(each, 1, cost(schedule::zb_h2_rule{}, 1).longest) == each.h2);
    CHECK(rate(each, 2, cost(schedule::zb_v_rule{}, 2).total) == each.zb_v);
    const std::size_t chunks = each.layers / each.ranks;
    CHECK(rate(each, chunks, cost(schedule::interleaved_rule{chunks}, chunks).total) == each.interleaved);
  }
}

TEST_CASE("a model that forgets wrap edges gives the printed interleaved column, and so fails here") {
  for (const published_setting& each : test::published_settings) {
    if (each.ranks * each.micro_batches > 1024) continue;
    CAPTURE(each.ranks);
    CAPTURE(each.micro_batches);
    CAPTURE(each.forward);
    const std::size_t chunks = each.layers / each.ranks;
    const auto table = schedule::generate(schedule::interleaved_rule{chunks}, each.ranks, each.micro_batches);
    const auto judged = [&](test::forgets what) {
      const auto found = test::naive_timeline(table, each.forward, each.input, each.weight,
                                              each.message * static_cast<ticks>(chunks), what);
      return rate(each, chunks, found.total);
    };
    CHECK(judged(test::forgets::nothing) == each.interleaved);
    CHECK(judged(test::forgets::wrap_edges) == each.forgetful);
  }
}

TEST_CASE("at these times V-Min is slower than 1F1B, and V-Half faster, with half of its memory") {
  const schedule::equal_costs halves{{11347, 11248, 8132}, 2 * 377};
  const schedule::equal_costs whole{{11347, 11248, 8132}, 377};
  const published_setting& of = test::published_settings[6];
  const auto plain = schedule::cost_of(schedule::one_f_one_b_rule{}, 8, 32, whole);
  const auto half = schedule::cost_of(schedule::v_half_rule{}, 8, 32, halves);
  const auto least = schedule::cost_of(schedule::v_min_rule{}, 8, 32, halves);
  const auto rate_of = [&](ticks took, std::size_t chunks) {
    published_setting sized = of;
    sized.micro_batches = 32;
    return rate(sized, chunks, took);
  };
  CHECK(rate_of(plain.total, 1) == 1967);
  CHECK(rate_of(half.total, 2) <= 1158);
  CHECK(rate_of(least.total, 2) > 1967);
  CHECK(half.peak == 10);  // chunks of half a stage: 5 of 8 units
  CHECK(least.peak == 8);
}
