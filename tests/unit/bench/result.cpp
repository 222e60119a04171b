// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How samples become rows and JSON. Without nlohmann-json there is no such benchmark.
#if __has_include(<nlohmann/json.hpp>)
#include "collectives/result.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr double left_out = std::numeric_limits<double>::quiet_NaN();

// Ten samples near, then ten far; the eleventh began near.
bench::cell moving_machine() {
  bench::cell out;
  out.what = bench::op::all_gather;
  out.size = bench::extent_of(out.what, 1 << 20, 4, 2);
  out.algorithm[0] = out.algorithm[1] = "pull";
  out.wrong[0] = 0;
  bench::series mine{bench::contender_kind::library_call, "belay", false, {}},
      slow{bench::contender_kind::handwritten_baseline, "a", false, {}},
      fast{bench::contender_kind::handwritten_baseline, "b", false, {}},
      copy{bench::contender_kind::copy, "temporal", false, {}};
  for (int i = 0; i < 20; ++i) {
    const double before = i <= 10 ? 0.09 : 0.4, after = i < 10 ? 0.09 : 0.4;
    out.around.push_back({{before, 1.1}, {after, 1.1}});
    mine.us.push_back(i < 10 ? 100 : 200);
    slow.us.push_back(i < 10 ? 150 : left_out);
    fast.us.push_back(i < 10 ? 120 : 190);
    copy.us.push_back(i < 10 ? 80 : 90);
  }
  mine.us[10] = 5000;
  out.all = {mine, slow, fast, copy};
  return out;
}

}  // namespace

TEST_CASE("states are reported apart, and a sample whose state changed is in neither") {
  const std::vector<bench::row> rows = bench::rows_of({moving_machine()});
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].state == "near");
  CHECK(rows[0].samples == 10);
  CHECK(rows[0].p50_us == 100);
  CHECK(rows[0].rtt_us == doctest::Approx(0.09));
  CHECK(rows[1].state == "far");
  CHECK(rows[1].samples == 9);
  CHECK(rows[1].p99_us == 200);
}

TEST_CASE("where the state changed in every sample the row is mixed; where every sample was disturbed that is said") {
  bench::cell changing = moving_machine(), disturbed = moving_machine();
  changing.size.bytes = 64;
  changing.around.resize(3);
  for (auto& [before, after] : changing.around) before.round_trip_us = 0.09, after.round_trip_us = 0.4;
  for (bench::series& each : changing.all) each.us.resize(3);
  disturbed.size.bytes = 128;
  for (double& us : disturbed.all[0].us) us = left_out;
  const std::vector<bench::cell> cells{moving_machine(), changing, disturbed};
  const std::vector<bench::row> rows = bench::rows_of(cells);
  REQUIRE(rows.size() == 3);
  CHECK(rows[2].state == "mixed");
  CHECK(rows[2].samples == 3);
  CHECK(rows[2].wrong == 0U);
  CHECK(bench::without_row(cells, rows) == std::vector<std::string>{"all_gather 128 B"});
}

TEST_CASE("the best setting of a peer counts, and what was not timed counts nowhere") {
  const std::vector<bench::row> rows = bench::rows_of({moving_machine()});
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].peers.at("twin") == 120);
  CHECK(rows[0].baseline_setting == "b");
  CHECK(rows[1].peers.at("twin") == 190);
  CHECK(rows[0].copy_us == 80);
}

TEST_CASE("a row of JSON has the fields that were promised, and no others") {
  const bench::run_words words{"float", "sum", "processes", "symmetric", 2, 0};
  const bench::row row = bench::rows_of({moving_machine()})[0];
  const nlohmann::ordered_json json = bench::json_of(row, words);
  std::set<std::string> fields;
  for (const auto& [field, value] : json.items()) fields.insert(field);
  CHECK(fields == std::set<std::string>{"op",     "bytes",   "count",   "type",   "redop",     "in_place", "p50_us",
                                        "p99_us", "algbw",   "busbw",   "wrong",  "algorithm", "state",    "ranks",
                                        "as",     "buffers", "samples", "rtt_us", "copy_us",   "peers"});
  CHECK(json["bytes"] == 1 << 20);
  CHECK(json["count"] == 1 << 17);
  CHECK(json["redop"] == "none");
  CHECK(json["algbw"].get<double>() == doctest::Approx(1.048576e6 / 100 / 1e3));
  CHECK(json["busbw"].get<double>() == doctest::Approx(0.5 * 1.048576e6 / 100 / 1e3));
  CHECK(json["peers"]["twin"] == 120);
  CHECK(json["wrong"] == 0);
}

TEST_CASE("one state is called single") {
  bench::cell one = moving_machine();
  for (auto& [before, after] : one.around) before.round_trip_us = after.round_trip_us = 0.2;
  const std::vector<bench::row> rows = bench::rows_of({one});
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].state == "single");
  CHECK(rows[0].samples == 20);
}
#endif
