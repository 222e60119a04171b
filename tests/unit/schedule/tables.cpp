// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Totals, bubbles and peaks of schedules by their closed forms: while compiling, and at run time for more ranks. Orders
// of computes as they were published.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule.hpp"
#include "unit/schedule/support/closed_forms.hpp"

namespace schedule = belay::schedule;
using schedule::ticks;
using test::closed_form;
using test::is;
using test::total_of;
using test::units;

namespace {

constexpr bool has_bubbles_of_whole_backwards(std::size_t p, std::size_t m) {
  const std::size_t fill = 3 * (p - 1);
  const auto interleaved = [&](std::size_t v) {
    return is(schedule::interleaved_rule{v}, p, m, total_of(3 * m * v + fill, (v - 1) * p + 2 * (p - 1) + 1));
  };
  return is(schedule::gpipe_rule{}, p, m, total_of(3 * m + fill, m)) &&
         is(schedule::one_f_one_b_rule{}, p, m, total_of(3 * m + fill, p)) && interleaved(2) && interleaved(3) &&
         is(schedule::breadth_first_rule{2}, p, m, total_of(6 * m + fill, 2 * m));
}
constexpr bool has_bubbles_of_split_backwards(std::size_t p, std::size_t m) {
  const auto local = [](std::size_t total, std::size_t longest, std::size_t peak) {
    return closed_form{static_cast<ticks>(total), static_cast<ticks>(longest), peak};
  };
  return is(schedule::interleaved_zero_bubble_rule{2}, p, m, total_of(6 * m + p - 1, 2 * p)) &&
         is(schedule::zb_h1_rule{}, p, m, total_of(3 * m + p - 1, p)) &&
         is(schedule::zb_h2_rule{}, p, m, local(3 * m + p - 1, 3 * m, 2 * p - 1)) &&
         is(schedule::zb_v_rule{}, p, m, local(6 * m + p - 1, 6 * m, 2 * p)) &&
         is(schedule::dualpipe_v_rule{}, p, m, total_of(6 * m + p - 1, 2 * p + 1));
}
// For 2 to 16 ranks, within the compilers' default limits.
static_assert(has_bubbles_of_whole_backwards(2, 4));
static_assert(has_bubbles_of_whole_backwards(3, 6));
static_assert(has_bubbles_of_whole_backwards(4, 8));
static_assert(has_bubbles_of_whole_backwards(5, 10));
static_assert(has_bubbles_of_whole_backwards(6, 12));
static_assert(has_bubbles_of_whole_backwards(7, 14));
static_assert(has_bubbles_of_whole_backwards(8, 16));
static_assert(has_bubbles_of_whole_backwards(9, 18));
static_assert(has_bubbles_of_whole_backwards(10, 20));
static_assert(has_bubbles_of_whole_backwards(11, 22));
static_assert(has_bubbles_of_whole_backwards(12, 24));
static_assert(has_bubbles_of_whole_backwards(13, 26));
static_assert(has_bubbles_of_whole_backwards(14, 28));
static_assert(has_bubbles_of_whole_backwards(15, 30));
static_assert(has_bubbles_of_whole_backwards(16, 32));
static_assert(has_bubbles_of_split_backwards(2, 4));
static_assert(has_bubbles_of_split_backwards(3, 6));
static_assert(has_bubbles_of_split_backwards(4, 8));
static_assert(has_bubbles_of_split_backwards(5, 10));
static_assert(has_bubbles_of_split_backwards(6, 12));
static_assert(has_bubbles_of_split_backwards(7, 14));
static_assert(has_bubbles_of_split_backwards(8, 16));
static_assert(has_bubbles_of_split_backwards(9, 18));
static_assert(has_bubbles_of_split_backwards(10, 20));
static_assert(has_bubbles_of_split_backwards(11, 22));
static_assert(has_bubbles_of_split_backwards(12, 24));
static_assert(has_bubbles_of_split_backwards(13, 26));
static_assert(has_bubbles_of_split_backwards(14, 28));
static_assert(has_bubbles_of_split_backwards(15, 30));
static_assert(has_bubbles_of_split_backwards(16, 32));
static_assert(has_bubbles_of_whole_backwards(4, 16) && has_bubbles_of_split_backwards(4, 16));

std::vector<std::string> computes_of(const schedule::dynamic_table& table, std::size_t rank) {
  std::vector<std::string> all;
  for (const schedule::action& next : table.actions(rank)) {
    if (!next.is_exchange())
      all.push_back("FBIW"[static_cast<int>(next.kind)] + std::to_string(next.micro_batch) + "." +
                    std::to_string(next.chunk));
  }
  return all;
}

}  // namespace

TEST_CASE("closed forms hold for up to 64 ranks") {
  for (std::size_t p = 17; p <= 64; p += p < 24 ? 1 : 8) {
    for (const std::size_t m : {2 * p, 3 * p}) {
      CAPTURE(p);
      CAPTURE(m);
      REQUIRE(has_bubbles_of_whole_backwards(p, m));
      REQUIRE(has_bubbles_of_split_backwards(p, m));
    }
  }
}

TEST_CASE("with one chunk the interleaved schedule is 1F1B, action by action") {
  for (std::size_t p = 1; p <= 6; ++p) {
    for (std::size_t m = 1; m <= 13; ++m)
      CHECK(schedule::generate(schedule::interleaved_rule{1}, p, m) == schedule::one_f_one_b(p, m));
  }
}

TEST_CASE("groups of the interleaved schedule: what is left over is the last one, or spread over the first") {
  const auto firsts = [](std::size_t p, std::size_t m, std::size_t group) {
    std::vector<std::string> all;
    const auto table = schedule::generate(schedule::interleaved_rule{2, group}, p, m);
    for (const std::string& next : computes_of(table, p - 1))
      if (next.front() == 'F') all.push_back(next.substr(1));
    return all;
  };
  using texts = std::vector<std::string>;
  CHECK(firsts(2, 4, 2) == texts{"0.0", "1.0", "0.1", "1.1", "2.0", "3.0", "2.1", "3.1"});
  CHECK(firsts(2, 5, 3) == texts{"0.0", "1.0", "2.0", "0.1", "1.1", "2.1", "3.0", "4.0", "3.1", "4.1"});
  CHECK(firsts(2, 5, 0) == texts{"0.0", "1.0", "2.0", "0.1", "1.1", "2.1", "3.0", "4.0", "3.1", "4.1"});
  CHECK(firsts(3, 2, 0) == texts{"0.0", "1.0", "0.1", "1.1"});
}

TEST_CASE("ZB-V of two ranks, three micro-batches, as published") {
  using texts = std::vector<std::string>;
  const auto table = schedule::generate(schedule::zb_v_rule{}, 2, 3);
  CHECK(computes_of(table, 0) == texts{"F0.0", "F1.0", "F2.0", "F0.1", "I0.1", "W0.1", "F1.1", "I1.1", "W1.1", "I0.0",
                                       "W0.0", "F2.1", "I2.1", "W2.1", "I1.0", "W1.0", "I2.0", "W2.0"});
  CHECK(table.stage(0, 1) == 3);
  CHECK(table.rank_of(2) == 1);
  CHECK(table.chunk_of(2) == 1);
}

TEST_CASE("the table made while compiling is the table made at start-up, with chunks too") {
  CHECK(schedule::generate<schedule::zb_v_rule{}, 3, 7>() == schedule::generate(schedule::zb_v_rule{}, 3, 7));
  CHECK(schedule::generate<schedule::v_half_rule{}, 4, 9>() == schedule::generate(schedule::v_half_rule{}, 4, 9));
  constexpr auto table = schedule::generate<schedule::interleaved_rule{3}, 2, 5>();
  CHECK(table == schedule::generate(schedule::interleaved_rule{3}, 2, 5));
  CHECK(schedule::to_dynamic(table) == table);
  CHECK_FALSE(schedule::generate(schedule::zb_v_rule{}, 3, 7) == schedule::generate(schedule::v_half_rule{}, 3, 7));
}

TEST_CASE("too few micro-batches and impossible orders are refused with what would do") {
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::generate(schedule::dualpipe_v_rule{}, 3, 5)),
                       doctest::Contains("dualpipe-v on 3 ranks needs at least 6 micro-batches, not 5"),
                       belay::usage_error);
  // Groups smaller than the pipeline: chunk 1 of rank 0 would wait for what rank 0 has not begun.
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::generate(schedule::interleaved_rule{2, 1}, 4, 8)),
                       doctest::Contains("wait for each other"), belay::usage_error);
  CHECK_THROWS_AS(static_cast<void>(schedule::generate(schedule::interleaved_rule{0}, 2, 2)), belay::usage_error);
}

TEST_CASE("a table without a weight gradient is refused: no half of a backward is lost") {
  const auto good = schedule::generate(schedule::zb_v_rule{}, 2, 4);
  std::vector<std::vector<schedule::action>> lists(2);
  for (std::size_t rank = 0; rank < 2; ++rank) lists[rank].assign(good.actions(rank).begin(), good.actions(rank).end());
  const auto last = std::find_if(lists[1].rbegin(), lists[1].rend(), [](const schedule::action& each) {
    return each.kind == schedule::action_kind::weight_gradient && each.chunk == 1;
  });
  const std::size_t batch = last->micro_batch;
  lists[1].erase(std::next(last).base());
  const auto proven = belay::proof(schedule::make_table("lost", 4, lists, 2, schedule::stage_in_v));
  CHECK(proven.reason.kind == schedule::fault_kind::weight_gradient_missing);
  CHECK(proven.reason.stage == 2);
  CHECK(belay::explain(proven.reason) == "stage 2 computes the input gradient of micro-batch " + std::to_string(batch) +
                                             " but never its weight gradient");
}
