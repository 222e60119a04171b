// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Closed forms of schedules of p ranks and m micro-batches, where a forward, an input and a weight gradient of a stage
// take a unit each.
#pragma once

#include <cstddef>

#include "belay/parallel/schedule.hpp"

namespace test {

namespace schedule = belay::schedule;
using schedule::ticks;

inline constexpr schedule::equal_costs units{};

struct closed_form {
  ticks total;
  ticks longest;  // from a rank's first compute to its last
  std::size_t peak;
};

template <class Rule>
constexpr bool is(const Rule& rule, std::size_t p, std::size_t m, closed_form expected) {
  const schedule::eager_cost found = schedule::cost_of(rule, p, m, units);
  // The idle share as an exact fraction: (total - busy) / total.
  const auto busy = static_cast<ticks>(3 * m * schedule::placed_by(rule).chunks);
  return found.total == expected.total && found.longest == expected.longest && found.peak == expected.peak &&
         found.bubble() * expected.total == (expected.total - busy) * found.total;
}

constexpr closed_form total_of(std::size_t total, std::size_t peak) {
  return {static_cast<ticks>(total), static_cast<ticks>(total), peak};
}

}  // namespace test
