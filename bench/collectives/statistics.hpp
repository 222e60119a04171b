// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Percentiles, and the machine's states found in a run's own round trips: a hypervisor may place two cores near to
// each other or far apart and move them while a benchmark runs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace bench {

/// The smallest value that at least `share` of the others do not exceed; 0 of nothing.
[[nodiscard]] inline double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto index = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  return values[std::min(index, values.size() - 1)];
}

/// One cluster of round trips or two, divided at `boundary`.
struct states {
  bool two = false;
  double boundary = 0;

  [[nodiscard]] const char* of(double round_trip) const noexcept {
    if (!two) return "single";
    return round_trip < boundary ? "near" : "far";
  }
};

/// Two means on the logarithms, exactly: the division with the least variance inside. It counts as two states only
/// when the means are apart by `separation` (a factor) and by several deviations, and neither is a handful of strays.
[[nodiscard]] inline states find_states(std::vector<double> round_trips, double separation = 1.5) {
  std::erase_if(round_trips, [](double x) { return !(x > 0); });
  std::sort(round_trips.begin(), round_trips.end());
  const std::size_t n = round_trips.size();
  if (n < 4) return {};
  std::vector<double> prefix(n + 1, 0), squares(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const double x = std::log(round_trips[i]);
    prefix[i + 1] = prefix[i] + x;
    squares[i + 1] = squares[i] + x * x;
  }
  const auto inside = [&](std::size_t a, std::size_t b) {
    const double s = prefix[b] - prefix[a];
    return std::max(0.0, squares[b] - squares[a] - s * s / static_cast<double>(b - a));
  };
  std::size_t best = 1;
  for (std::size_t cut = 1; cut < n; ++cut) {
    if (inside(0, cut) + inside(cut, n) < inside(0, best) + inside(best, n)) best = cut;
  }
  const double low = prefix[best] / static_cast<double>(best);
  const double high = (prefix[n] - prefix[best]) / static_cast<double>(n - best);
  const double deviation = std::sqrt((inside(0, best) + inside(best, n)) / static_cast<double>(n));
  const std::size_t few = std::max<std::size_t>(5, n / 20);
  if (high - low < std::log(separation) || high - low < 3 * deviation || best < few || n - best < few) return {};
  return {true, std::exp((low + high) / 2)};
}

}  // namespace bench
