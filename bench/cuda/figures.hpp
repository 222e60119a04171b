// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Lines of figures with their limits, and times of work on a device by the clock of the host.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace bench {

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Seconds of `work()`, which queues on `stream`, a call: of `calls` in a row.
template <class Stream, class Work>
double seconds_of(Stream& stream, std::size_t calls, const Work& work) {
  stream.synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < calls; ++i) work();
  stream.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / static_cast<double>(calls);
}

/// What has a limit is held against it: "  short" where it does not reach it.
class figures {
 public:
  /// A ratio that is to reach `limit`.
  void at_least(const std::string& what, double ratio, double limit) {
    line(what, ratio, limit, ratio >= limit, "at least");
  }
  /// One that is to stay within it.
  void at_most(const std::string& what, double ratio, double limit) {
    line(what, ratio, limit, ratio <= limit, "at most");
  }
  [[nodiscard]] bool all_reached() const noexcept { return reached_; }

 private:
  void line(const std::string& what, double ratio, double limit, bool ok, const char* side) {
    std::printf("%-66s %6.3f (limit: %s %.2f)%s\n", what.c_str(), ratio, side, limit, ok ? "" : "  short");
    reached_ = reached_ && ok;
  }

  bool reached_ = true;
};

}  // namespace bench
