// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Lines of figures with their limits, and times of work on a device by the clock of the host.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/printable.hpp"

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

/// Of the shorter of two pieces of work, how much lay beside the other: 1 where both together took no longer than the
/// longer one alone, 0 where they took as long as one after the other.
[[nodiscard]] inline double hidden_share(double one, double other, double together) noexcept {
  const double shorter = std::min(one, other);
  return shorter <= 0 ? 0 : std::clamp((one + other - together) / shorter, 0.0, 1.0);
}

/// One figure; without a side it is told, and not held against anything.
struct figure {
  enum class side : std::uint8_t { none, at_least, at_most };
  std::string what, unit;  // of a ratio none
  double measured = 0, limit = 0, goal = 0;
  side held = side::none;

  [[nodiscard]] bool reached() const noexcept {
    return held == side::none || (held == side::at_least ? measured >= limit : measured <= limit);
  }
  /// "copies  0.953 (limit: at least 0.88, goal 0.92)  reached", or "  short".
  [[nodiscard]] std::string line() const {
    char text[64];
    std::string out = what;
    out.resize(std::max<std::size_t>(out.size(), 66), ' ');
    std::snprintf(text, sizeof text, " %6.3f", measured);
    out += text + (unit.empty() ? "" : " " + unit);
    if (held == side::none) return out;
    std::snprintf(text, sizeof text, " (limit: %s %.2f", held == side::at_least ? "at least" : "at most", limit);
    out += text;
    if (goal != 0) {
      std::snprintf(text, sizeof text, ", goal %.2f", goal);
      out += text;
    }
    return out + (reached() ? ")  reached" : ")  short");
  }
  void append_json(std::string& out) const {
    char text[96];
    out += "{\"what\": ";
    belay::append_json(out, what);
    out += ", \"unit\": ";
    belay::append_json(out, unit);
    std::snprintf(text, sizeof text, ", \"measured\": %.6g", measured);
    out += text;
    if (held != side::none) {
      std::snprintf(text, sizeof text, ", \"limit\": %.6g, \"side\": \"%s\", \"reached\": %s", limit,
                    held == side::at_least ? "at least" : "at most", reached() ? "true" : "false");
      out += text;
    }
    out += '}';
  }
};

/// Prints each figure when it is known, and keeps all.
class figures {
 public:
  /// A ratio that is to reach `limit`, and a goal beyond.
  void at_least(const std::string& what, double ratio, double limit, double goal = 0) {
    add({what, "", ratio, limit, goal, figure::side::at_least});
  }
  /// The figure that is to stay within it.
  void at_most(const std::string& what, double value, double limit, const std::string& unit = "") {
    add({what, unit, value, limit, 0, figure::side::at_most});
  }
  /// A value that is told beside them.
  void told(const std::string& what, double value, const std::string& unit) { add({what, unit, value}); }

  [[nodiscard]] bool all_reached() const noexcept {
    return std::all_of(all_.begin(), all_.end(), [](const figure& each) { return each.reached(); });
  }
  /// {"device": "...", "figures": [...]}.
  [[nodiscard]] std::string json(const std::string& device) const {
    std::string out = "{\"device\": ";
    belay::append_json(out, device);
    out += ", \"figures\": [";
    for (std::size_t i = 0; i < all_.size(); ++i) {
      out += i == 0 ? "\n  " : ",\n  ";
      all_[i].append_json(out);
    }
    return out + "]}\n";
  }

 private:
  void add(figure what) {
    std::printf("%s\n", what.line().c_str());
    std::fflush(stdout);
    all_.push_back(std::move(what));
  }

  std::vector<figure> all_;
};

}  // namespace bench
