// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// V-Half and V-Min after their ends were moved together: totals and peaks for every number of ranks.
#include <doctest/doctest.h>

#include "belay/parallel/schedule.hpp"
#include "unit/schedule/support/closed_forms.hpp"

namespace schedule = belay::schedule;
using test::is;
using test::total_of;

namespace {

constexpr std::size_t v_half_bubble(std::size_t p) { return p == 2 ? 1 : 6 * ((p + 1) / 2) - 7; }
constexpr std::size_t v_min_bubble(std::size_t p) { return p % 3 == 0 ? 4 * p - 7 : 4 * p - 5; }
constexpr bool has_bubbles_of_v_patterns(std::size_t p, std::size_t m) {
  return is(schedule::v_half_rule{}, p, m, total_of(6 * m + v_half_bubble(p), 2 * ((p + 2) / 2))) &&
         is(schedule::v_min_rule{}, p, m, total_of(6 * m + v_min_bubble(p), 2 * ((p + 4) / 3)));
}

// Within the compilers' default limits; more ranks take Clang more steps than it makes.
static_assert(has_bubbles_of_v_patterns(2, 4));
static_assert(has_bubbles_of_v_patterns(3, 6));
static_assert(has_bubbles_of_v_patterns(4, 8));
static_assert(has_bubbles_of_v_patterns(5, 10));
static_assert(has_bubbles_of_v_patterns(6, 12));
static_assert(has_bubbles_of_v_patterns(7, 14));
static_assert(has_bubbles_of_v_patterns(8, 16));
static_assert(has_bubbles_of_v_patterns(9, 18));
static_assert(has_bubbles_of_v_patterns(10, 20));
#if !defined(__clang__)
static_assert(has_bubbles_of_v_patterns(11, 22));
static_assert(has_bubbles_of_v_patterns(12, 24));
static_assert(has_bubbles_of_v_patterns(13, 26));
static_assert(has_bubbles_of_v_patterns(14, 28));
static_assert(has_bubbles_of_v_patterns(15, 30));
static_assert(has_bubbles_of_v_patterns(16, 32));
#endif
static_assert(has_bubbles_of_v_patterns(4, 16) && has_bubbles_of_v_patterns(6, 25));

}  // namespace

TEST_CASE("V-Half and V-Min take what their closed forms say, for any number of micro-batches") {
  for (std::size_t p = 2; p <= 64; p += p < 24 ? 1 : 8) {
    for (const std::size_t m : {2 * p, 3 * p + 1, 4 * p}) {
      CAPTURE(p);
      CAPTURE(m);
      REQUIRE(has_bubbles_of_v_patterns(p, m));
    }
  }
}
