// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rows that are added to those of a table: after a sorting by teams, or one after the other.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "belay/core/dtype.hpp"
#include "belay/kernel/rows.hpp"
#include "unit/kernel/support/lanes.hpp"

namespace {

using namespace belay::kernel;
using test::run_by_lanes;

template <class T>
std::vector<T> wave(std::size_t count, double phase) {
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i)  // of many magnitudes, so that another order has other bits
    values.emplace_back(static_cast<float>(std::sin(0.7 * static_cast<double>(i) + phase) * std::pow(2.0, i % 9)));
  return values;
}

// The rows in the order of their keys, as a kit sorts them.
template <class Index>
std::vector<std::int32_t> sorted(const std::vector<Index>& index, std::size_t limit) {
  std::vector<std::int32_t> keys(index.size()), places(index.size()), order(index.size(), -1);
  for_each_index(keys.size(), limited_keys<Index>{index.data(), limit, keys.data()});
  sorted_places{{keys.data(), {keys.size()}}, limit + 1, {places.data(), {places.size()}}}();
  for_each_index(keys.size(), rows_by_place{places.data(), order.data()});
  return order;
}

template <class T, class Index>
void check(const std::vector<Index>& index, std::size_t width, std::size_t limit, std::size_t unaligned) {
  CAPTURE(index.size());
  CAPTURE(width);
  const std::vector<T> in = wave<T>(index.size() * width + unaligned, 0);
  std::vector<float> one = wave<float>(limit * width, 1), by_one = one, by_many = one;
  const auto all = [&](std::vector<float>& table) {
    return accumulate_rows<T, Index, float>{in.data() + unaligned, index.data(), index.size(),
                                            table.data(),          width,        limit};
  };
  for_each_row(all(one).blocks(), all(one));
  const std::vector<std::int32_t> order = sorted(index, limit);
  const auto runs = [&](std::vector<float>& table) {
    return accumulate_sorted_rows<T, Index, float>{all(table), order.data()};
  };
  CHECK(runs(one).packs() == (width % runs(one).columns_of_pack == 0 && unaligned == 0));
  for_each_row(runs(by_one).indices(), runs(by_one));
  run_by_lanes<32>(runs(by_many).indices(), runs(by_many));
  CHECK(by_one == one);
  CHECK(by_many == one);
}

}  // namespace

TEST_CASE_TEMPLATE("rows that are sorted by their index are added with the bits of one row after the other", T, float,
                   belay::bf16) {
  const auto all_widths = [](const auto& index, std::size_t limit) {
    for (const std::size_t width : {1u, 7u, 8u, 72u, 264u}) check<T>(index, width, limit, 0);
    check<T>(index, 8, limit, 1);
  };
  all_widths(std::vector<std::int32_t>{}, 3);
  all_widths(std::vector<std::int32_t>{2}, 3);
  all_widths(std::vector<std::int32_t>{0, 3, 1, -1, 1, 0x7fffffff, 0, 3}, 3);  // some of which are no index
  for (const std::size_t rows : {5u, 6u, 7u, 12u, 13u}) all_widths(std::vector<std::int64_t>(rows, 1), 2);
  std::vector<std::int32_t> index(45);
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i * i % 13);
  all_widths(index, 11);
}

TEST_CASE("a run of every length and place ends where the next index begins") {
  for (std::size_t before = 0; before < 4; ++before)
    for (std::size_t length = 1; length < 20; ++length) {
      std::vector<std::int32_t> index(before, 0);
      index.insert(index.end(), length, 1);
      for (std::size_t after = 0; after < 3; ++after, index.push_back(2)) check<float>(index, 4, 3, 0);
    }
}

TEST_CASE("keys that are no index stand behind all others, and each row stands at its place") {
  CHECK(sorted<std::int64_t>({4, -1, 0, std::int64_t{1} << 40, 4, 0}, 5) ==
        std::vector<std::int32_t>{2, 5, 0, 4, 1, 3});
}
