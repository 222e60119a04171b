// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a sample is taken. All contenders of a cell run inside each sample, so that a machine that changes changes for
// all of them; a time is that of the slowest rank.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "collectives/disturbance.hpp"
#include "collectives/probe.hpp"
#include "collectives/result.hpp"
#include "collectives/scoreboard.hpp"

namespace bench {

/// The parts that are timed: how its inputs are written anew, and a number of its calls back to back.
struct contender {
  contender_kind kind = contender_kind::library_call;
  std::string name;
  bool in_place = false;
  std::function<void()> freshen;
  std::function<void(int calls)> run;
};

/// Back-to-back calls that are timed as one below 4 KiB, where a call is hardly longer than reading the clock.
inline constexpr int batch = 40;

[[nodiscard]] constexpr int calls_of(std::size_t bytes) noexcept { return bytes < 4096 ? batch : 1; }

/// Slowest rank's microseconds of a call, just as it is.
[[nodiscard]] inline double timed_once(scoreboard& ranks, const contender& each, int calls) {
  each.freshen();
  ranks.align();
  const double start = now_us();
  each.run(calls);
  return ranks.largest(now_us() - start) / calls;
}

/// Runs it without a clock: each contender leaves caches and branch predictors as its own code needs them, and a
/// processor takes some ten microseconds until it is ready for its widest registers. Large ones leave nothing.
inline void warm_up(scoreboard& ranks, const contender& each, std::size_t bytes) {
  if (bytes > (std::size_t{16} << 20)) return;
  constexpr std::size_t enough = std::size_t{1} << 20;
  each.freshen();
  ranks.align();
  each.run(static_cast<int>(std::clamp(enough / std::max(bytes, std::size_t{1}), std::size_t{1}, std::size_t{batch})));
}

/// Slowest rank's microseconds of a call once it is warm; taken again where another program had a core for more than a
/// hundredth of the time, NaN after ten times. Where ranks share cores they disturb each other, and that is part of
/// what is measured.
[[nodiscard]] inline double timed(scoreboard& ranks, const disturbance_meter& meter, const contender& each,
                                  std::size_t bytes) {
  const int calls = calls_of(bytes);
  for (int attempt = 0; attempt < 10; ++attempt) {
    // Nothing but the call's own code between warming up and timing: a system call would evict it.
    const double kept = meter.us();
    warm_up(ranks, each, bytes);
    const double us = timed_once(ranks, each, calls);
    const double disturbed = ranks.largest(meter.us() - kept);
    if (ranks.how() == variants::give_core_away || disturbed <= 0.01 * us * calls) return us;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

/// Settings of the hand-written baseline and kinds of copies that lost clearly while warming up are not timed any more:
/// the best counts. All ranks see the same times and drop the same.
inline void drop_losers(const std::vector<contender>& all, const std::vector<std::vector<double>>& warm,
                        std::vector<bool>& out) {
  const auto rival = [&](std::size_t a, std::size_t b) {
    return all[a].kind == all[b].kind && all[a].in_place == all[b].in_place;
  };
  const auto best_of = [&](std::size_t i) { return percentile(warm[i], 0); };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (warm[i].size() < 2 ||
        (all[i].kind != contender_kind::handwritten_baseline && all[i].kind != contender_kind::copy))
      continue;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (rival(i, k) && warm[k].size() > 1 && best_of(i) > 1.4 * best_of(k)) out[i] = true;
    }
  }
}

/// Fills `into` with `samples` of every contender, after `warmup` that do not count.
inline void take_samples(scoreboard& ranks, state_probe& probe, const std::vector<contender>& all, int warmup,
                         int samples, cell& into) {
  std::vector<std::vector<double>> warm(all.size());
  std::vector<bool> dropped(all.size(), false);
  for (const contender& each : all) into.all.push_back({each.kind, each.name, each.in_place, {}});
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 random(1);
  const disturbance_meter meter;
  machine_state before = probe();
  for (int i = -warmup; i < samples; ++i) {
    if (i == 0 && warmup > 1) drop_losers(all, warm, dropped);
    // Another order each time, the same on all ranks: no contender gains by its place.
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t k : order) {
      double us = std::numeric_limits<double>::quiet_NaN();
      if (!dropped[k]) us = timed(ranks, meter, all[k], into.size.bytes);
      if (i >= 0)
        into.all[k].us.push_back(us);
      else if (!std::isnan(us))
        warm[k].push_back(us);
    }
    const machine_state after = probe();
    if (i >= 0) into.around.emplace_back(before, after);
    before = after;
  }
}

}  // namespace bench
