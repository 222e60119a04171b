// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Kernels over a table of ranges, by one thread and by a warp's lanes, against the same work range by range.
#include "belay/kernel/chunked_ranges.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "belay/core/dtype.hpp"
#include "unit/kernel/support/lanes.hpp"

namespace {

using namespace belay::kernel;
using belay::compute_type_t;

// Elements of the ranges; after the first all lie where packs are not aligned, the first where they are.
const std::size_t counts[] = {4096, 4097, 1, 15, 16, 17, 4095, 3 * 4096 + 5};
constexpr std::size_t gap = 3;  // elements between ranges, of values and gradients

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class Value>
struct model {
  using number = compute_type_t<Value>;
  std::size_t elements = 0, chunks = 0;
  std::vector<Value> values;
  std::vector<number> gradients, state;
  std::vector<chunked_range> rows;

  model() {
    std::size_t first = 0;
    for (const std::size_t count : counts) elements += count, first += count + gap;
    for (std::size_t i = 0; i < first; ++i) {
      values.push_back(static_cast<Value>(static_cast<number>(std::cos(0.3 * static_cast<double>(i)))));
      gradients.push_back(static_cast<number>(std::sin(0.7 * static_cast<double>(i))));
    }
    for (std::size_t i = 0; i < 3 * elements; ++i)
      state.push_back(static_cast<number>(0.01 + 0.001 * static_cast<double>(i % 17)));
  }
  model(const model& other) = delete;
  void describe() {
    std::size_t first = 0, before = 0;
    for (const std::size_t count : counts) {
      rows.push_back({&values[first], &gradients[first], count, chunks, before, rows.size() % 2});
      chunks += chunk_count(count), first += count + gap, before += count;
    }
  }
};

// `run(rows, kernel)` runs a kernel of teams.
template <class Value, class Run>
void check_update(const Run& run) {
  using number = compute_type_t<Value>;
  model<Value> expected, here;
  expected.describe(), here.describe();
  const adamw_scalars<number> decayed = adamw_at_step<number>({}, 3, 0.5);
  const adamw_scalars<number> undecayed = adamw_at_step<number>({.decay = 0}, 3, 0.5);
  number *const first = expected.state.data(), *const second = first + expected.elements;
  for (const chunked_range& range : expected.rows) {
    auto* const value = static_cast<Value*>(range.value);
    const auto* const gradient = static_cast<const number*>(range.gradient);
    const auto update = [&](number* master) {
      return adamw<number>{master, gradient, first + range.before, second + range.before,
                           range.decays != 0 ? decayed : undecayed};
    };
    if constexpr (std::is_same_v<Value, number>)
      for_each_index(range.count, update(value));
    else
      for_each_index(range.count,
                     adamw_of_master<number, Value>{value, update(second + expected.elements + range.before)});
  }
  // As two launches, as of two buckets.
  const std::size_t cut = 3, before = here.rows[cut].first_chunk;
  const auto update = [&](const chunked_ranges& some) {
    return adamw_of_ranges<number, Value>{some, here.state.data(), here.elements, {&decayed}, {&undecayed}};
  };
  run(before, update({here.rows.data(), cut}));
  run(here.chunks - before, update({here.rows.data() + cut, here.rows.size() - cut}));
  CHECK(same_bits(here.values, expected.values));
  CHECK(same_bits(here.state, expected.state));
}

template <class T, class Run>
void check_squares(const Run& run) {
  model<T> expected, here;
  expected.describe(), here.describe();
  const T by = static_cast<T>(1.0 / 3.0);
  std::vector<double> squares(expected.chunks, -1), same(expected.chunks, -1);
  for (const chunked_range& range : expected.rows) {
    auto* const gradient = static_cast<T*>(range.gradient);
    for_each_index(range.count, scale_from<T>{&by, gradient});
    for_each_row(chunk_count(range.count),
                 chunk_sums_of_squares<T>{gradient, range.count, &squares[range.first_chunk]});
  }
  const scaled_squares_of_ranges<T> all{{here.rows.data(), here.rows.size()}, here.chunks, &by, same.data()};
  run(all.rows_of(here.chunks), all);
  CHECK(same_bits(here.gradients, expected.gradients));
  CHECK(same_bits(same, squares));
}

const auto by_one = [](std::size_t rows, const auto& kernel) { for_each_row(rows, kernel); };
const auto by_warp = [](std::size_t rows, const auto& kernel) { test::run_by_lanes<32>(rows, kernel); };

}  // namespace

TEST_CASE_TEMPLATE("an update over a table has the bits of one range after the other", T, float, double, belay::bf16) {
  check_update<T>(by_one);
  check_update<T>(by_warp);
}

TEST_CASE_TEMPLATE("gradients that are divided and summed over a table have the bits of two passes", T, float, double) {
  check_squares<T>(by_one);
  check_squares<T>(by_warp);
}

TEST_CASE("a chunk is found in its range") {
  model<float> all;
  all.describe();
  const chunked_ranges ranges{all.rows.data(), all.rows.size()};
  std::size_t number = 0;
  for (const chunked_range& range : all.rows)
    for (std::size_t first = 0; first < range.count; first += sum_chunk, ++number) {
      const chunked_ranges::range_part chunk = ranges[number];
      CHECK(chunk.of == &range);
      CHECK(chunk.first == first);
      CHECK(chunk.count == (range.count - first < sum_chunk ? range.count - first : sum_chunk));
    }
  CHECK(number == all.chunks);
}
