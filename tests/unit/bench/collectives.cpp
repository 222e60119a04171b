// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the benchmark of collectives computes besides measuring.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "collectives/operation.hpp"
#include "collectives/pattern.hpp"
#include "collectives/size.hpp"
#include "collectives/statistics.hpp"

using bench::op;

TEST_CASE("sizes are written in powers of 1024") {
  CHECK(bench::parse_size("8") == 8U);
  CHECK(bench::parse_size("16K") == 16384U);
  CHECK(bench::parse_size("64M") == std::size_t{64} << 20);
  CHECK(bench::parse_size("2g") == std::size_t{2} << 30);
  for (const char* wrong : {"", "K", "-8", "8 ", "1.5M", "8T", "8KK", "99999999999999999999", "99999999999999G"}) {
    CAPTURE(wrong);
    CHECK(!bench::parse_size(wrong));
  }
  CHECK(bench::size_text(64U << 20) == "64M");
  CHECK(bench::size_text(1536) == "1536");
}

TEST_CASE("a sweep goes from the smallest to the largest, both counted") {
  CHECK(bench::sweep(8, 64, 2) == std::vector<std::size_t>{8, 16, 32, 64});
  CHECK(bench::sweep(8, 100, 4) == std::vector<std::size_t>{8, 32});
  CHECK(bench::sweep(7, 7, 2) == std::vector<std::size_t>{7});
  const std::size_t largest = std::numeric_limits<std::size_t>::max();
  CHECK(bench::sweep(largest / 2, largest, 4).size() == 1);  // ends instead of wrapping
}

TEST_CASE("operations are named one by one, in lists, or all at once") {
  CHECK(bench::parse_ops("all_reduce,barrier") == std::vector{op::all_reduce, op::barrier});
  CHECK(bench::parse_ops("all")->size() == bench::op_names.size());
  CHECK(!bench::parse_ops("all_reduce,"));
  CHECK(!bench::parse_ops("allreduce"));
}

TEST_CASE("bytes are those of the larger buffer, whole parts of it") {
  CHECK(bench::extent_of(op::all_reduce, 64, 4, 2).count == 16);
  CHECK(bench::extent_of(op::all_gather, 64, 4, 2).count == 8);
  CHECK(bench::extent_of(op::all_gather, 64, 4, 2).bytes == 64);
  CHECK(bench::extent_of(op::reduce_scatter, 64, 4, 3).count == 5);
  CHECK(bench::extent_of(op::reduce_scatter, 64, 4, 3).bytes == 60);
  CHECK(bench::extent_of(op::all_to_all, 8, 8, 2).count == 0);
}

TEST_CASE("bus bandwidths are nccl-tests' for each operation and number of ranks") {
  CHECK(bench::algbw(64'000'000, 1000) == doctest::Approx(64));  // GB are 1e9
  const auto factor = [](op what, int ranks) { return bench::busbw_factor(what, ranks); };
  CHECK(factor(op::all_reduce, 2) == doctest::Approx(1));
  CHECK(factor(op::all_reduce, 8) == doctest::Approx(2 * 7 / 8.0));
  for (const op what : {op::reduce_scatter, op::all_gather, op::all_to_all, op::gather, op::scatter}) {
    CHECK(factor(what, 2) == doctest::Approx(0.5));
    CHECK(factor(what, 8) == doctest::Approx(7 / 8.0));
  }
  for (const op what : {op::broadcast, op::reduce, op::send_recv}) CHECK(factor(what, 8) == doctest::Approx(1));
}

TEST_CASE("percentiles are values that were measured") {
  std::vector<double> values;
  for (int i = 100; i > 0; --i) values.push_back(i);
  CHECK(bench::percentile(values, 0.5) == 51);
  CHECK(bench::percentile(values, 0.99) == 100);
  CHECK(bench::percentile({3}, 0.99) == 3);
  CHECK(bench::percentile({}, 0.5) == 0);
}

TEST_CASE("two states are found where round trips fall into two groups far apart") {
  std::vector<double> trips;
  for (int i = 0; i < 50; ++i) trips.push_back(0.085 + 0.0002 * i);
  CHECK(!bench::find_states(trips).two);
  for (int i = 0; i < 20; ++i) trips.push_back(0.38 + 0.001 * i);
  const bench::states found = bench::find_states(trips);
  REQUIRE(found.two);
  CHECK(std::string(found.of(0.094)) == "near");
  CHECK(std::string(found.of(0.38)) == "far");
  CHECK(std::string(bench::states{}.of(0.38)) == "single");
}

TEST_CASE("a broad scatter, a few strays and unknown round trips are one state") {
  std::vector<double> broad;
  for (int i = 0; i < 100; ++i) broad.push_back(0.14 + 0.001 * i);  // 140 to 240 ns with no gap
  CHECK(!bench::find_states(broad).two);
  std::vector<double> strays(100, 0.2);
  strays[17] = 0.9;
  strays[18] = 1.1;
  CHECK(!bench::find_states(strays).two);
  CHECK(!bench::find_states(std::vector<double>(50, 0.0)).two);
  CHECK(!bench::find_states({}).two);
}

TEST_CASE("what ranks hold differs by rank, place and version, is never zero, and its reduction is ordered") {
  const bench::pattern<float> numbers;
  std::vector<float> written(10000);
  numbers.write(written.data(), written.size(), 1, 3);
  for (std::size_t i = 0; i < written.size(); ++i) {
    REQUIRE(written[i] == numbers.at(1, i, 3));
    REQUIRE(written[i] > 0);
  }
  const auto differ = [&](auto a, auto b) {
    int count = 0;
    for (std::size_t i = 0; i < 4096; ++i) count += a(i) != b(i) ? 1 : 0;
    return count > 4000;
  };
  const auto base = [&](std::size_t i) { return numbers.at(0, i, 0); };
  CHECK(differ(base, [&](std::size_t i) { return numbers.at(1, i, 0); }));
  CHECK(differ(base, [&](std::size_t i) { return numbers.at(0, i, 1); }));
  CHECK(differ(base, [&](std::size_t i) { return numbers.at(0, i + 4096, 0); }));  // parts of a power of two
  const float a = numbers.at(0, 5, 0), b = numbers.at(1, 5, 0), c = numbers.at(2, 5, 0);
  CHECK(numbers.reduced<belay::sum_t>(3, 5, 0) == (a + b) + c);
  CHECK(numbers.reduced<belay::average_t>(3, 5, 0) == ((a + b) + c) / 3.0F);
}
