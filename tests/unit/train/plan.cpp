// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/plan.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using belay::tier;

TEST_CASE("items of a tier add up, and the worst shortage against a budget is told") {
  belay::rank_plan first, second;
  first.add(tier::device, "parameters", 100);
  first.add(tier::device, "activations", 50, 60);
  second.add(tier::host, "batch", 7);
  CHECK(first.peak_bytes(tier::device) == 150);
  CHECK(first.capacity_bytes(tier::device) == 160);
  CHECK(first.peak_bytes(tier::host) == 0);
  const belay::plan plan({first, second});
  belay::budget limit;
  CHECK_FALSE(plan.shortage(limit));
  limit[tier::device] = 150;
  CHECK_FALSE(plan.shortage(limit));
  limit[tier::device] = 149;
  limit[tier::host] = 0;
  REQUIRE(plan.shortage(limit));
  CHECK(plan.shortage(limit)->where_it_is == tier::host);
  CHECK(plan.shortage(limit)->rank == 1);
}

TEST_CASE("items that wrap round are over every budget, also over none") {
  belay::rank_plan rank;
  rank.add(tier::device, "parameters", SIZE_MAX);
  rank.add(tier::device, "gradients", 1);
  rank.add(tier::device, "activations", 6);
  CHECK(rank.peak_bytes(tier::device) > belay::largest_size);
  CHECK(rank.capacity_bytes(tier::device) > belay::largest_size);
  belay::budget limit;
  const belay::plan plan({rank});
  REQUIRE(plan.shortage(limit));
  limit[tier::device] = 100;
  REQUIRE(plan.shortage(limit));
  CHECK(plan.shortage(limit)->budget_bytes == 100);
}
