// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a Chrome trace must be: spans of a lane nest and begin in order, flows have two ends, times rise, and every rank
// is there.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace report_test {

struct read_trace {
  nlohmann::json file;
  std::size_t spans = 0, flows = 0, counters = 0, under_way = 0;

  /// The spans of a rank with this category, or name.
  [[nodiscard]] std::vector<nlohmann::json> of(std::size_t rank, const std::string& key,
                                               const std::string& value) const {
    std::vector<nlohmann::json> out;
    for (const auto& event : file["traceEvents"])
      if (event["ph"] == "X" && event["pid"] == rank && event[key] == value) out.push_back(event);
    return out;
  }
  [[nodiscard]] double seconds(std::size_t rank, const std::string& key, const std::string& value) const {
    double out = 0;
    for (const auto& event : of(rank, key, value)) out += 1e-6 * double(event["dur"]);
    return out;
  }
};

/// Reads it, and fails where it breaks the format. Times are microseconds with three digits, which doubles round; those
/// of two ranks are so many apart, or say nothing of each other where that is infinity.
inline read_trace checked_trace(const std::string& path, std::size_t ranks, double clocks_differ = 0) {
  constexpr double rounding = 1e-4;
  std::ifstream in(path);
  read_trace out{nlohmann::json::parse(in)};
  std::set<std::size_t> named;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::pair<double, double>>> open;  // by lane
  std::map<std::pair<std::size_t, std::string>, double> last;                                  // of a counter
  std::map<std::string, std::vector<nlohmann::json>> ends;                                     // of a flow
  for (const auto& event : out.file["traceEvents"]) {
    const std::string type = event["ph"];
    const std::size_t rank = event["pid"], lane = event["tid"];
    REQUIRE(rank < ranks);
    if (type == "M") {
      if (event["name"] == "process_name") named.insert(rank);
      continue;
    }
    const double begin = event["ts"];
    CHECK(begin >= 0);
    if (type == "X") {
      const double end = begin + double(event["dur"]);
      CHECK(double(event["dur"]) >= 0);
      auto& around = open[{rank, lane}];
      while (!around.empty() && around.back().second <= begin + rounding) around.pop_back();
      if (!around.empty()) {
        INFO(event.dump());
        CHECK(around.back().first <= begin + rounding);
        CHECK(end <= around.back().second + rounding);
      }
      around.emplace_back(begin, end);
      ++out.spans;
    } else if (type == "B") {  // of a run that has failed
      CHECK(out.file["otherData"].contains("failed"));
      ++out.under_way;
    } else if (type == "C") {
      auto& before = last[{rank, event["name"]}];
      CHECK(before <= begin);
      before = begin;
      ++out.counters;
    } else {
      CHECK((type == "s" || type == "f"));
      ends[event["id"]].push_back(event);
    }
  }
  CHECK(named.size() == ranks);
  for (auto& [id, both] : ends) {
    INFO(id);
    REQUIRE(both.size() == 2);
    if (both[0]["ph"] == "f") std::swap(both[0], both[1]);
    CHECK(both[0]["ph"] == "s");
    CHECK(both[1]["ph"] == "f");
    CHECK(double(both[0]["ts"]) <= double(both[1]["ts"]) + clocks_differ);
    CHECK(both[0]["pid"] != both[1]["pid"]);
  }
  out.flows = ends.size();
  return out;
}

}  // namespace report_test
