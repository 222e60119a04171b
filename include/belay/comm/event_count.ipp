// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The duration of one poll of a spin, measured.
#pragma once

#include "belay/comm/event_count.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL int spins_in(std::chrono::nanoseconds time) noexcept {
  using clock = std::chrono::steady_clock;
  constexpr int polls = 400;
  auto fastest = largest_value<std::chrono::nanoseconds>;
  for (int round = 0; round < 3; ++round) {  // the fastest round was not interrupted
    const auto before = clock::now();
    for (int i = 0; i < polls; ++i) relax();
    const auto after = clock::now();
    if (after - before < fastest) fastest = after - before;
  }
  const auto each = static_cast<double>(fastest.count() > 0 ? fastest.count() : 1) / polls;
  const double count = static_cast<double>(time.count()) / each;
  return count > 1e9 ? 1'000'000'000 : static_cast<int>(count) + 1;
}

}  // namespace belay::inline BELAY_ABI
