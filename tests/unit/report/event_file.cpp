// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/report/event_file.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "belay/core/view.hpp"
#include "support/event_reader.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"

namespace {

struct folder {
  std::string path = (std::filesystem::temp_directory_path() / ("belay_events_" + std::to_string(::getpid()))).string();
  folder() { std::filesystem::remove_all(path); }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("scalars and texts of steps are read as they were added, checksums and all") {
  const folder here;
  belay::event_file events(here.path + "/runs/first");
  events.scalar("loss", 2.5).scalar("device/peak", 1e10).write(1);
  events.write(2);  // nothing was added
  const std::string long_text(1000, 'x');
  events.text("sample", long_text).text("empty", "").scalar("no number", std::nan("")).write(std::uint64_t{1} << 40U);
  const auto read = report_test::read_events(events.path());
  REQUIRE(read.size() == 3);
  CHECK(read[0].version == "brain.Event:2");
  CHECK(read[1].step == 1);
  CHECK(read[1].scalars == std::map<std::string, double>{{"loss", 2.5}, {"device/peak", 1e10F}});
  CHECK(read[1].wall_time > 1.7e9);  // seconds of the epoch
  CHECK(read[2].step == std::uint64_t{1} << 40U);
  CHECK(read[2].texts == std::map<std::string, std::string>{{"sample", long_text}, {"empty", ""}});
  CHECK(std::isnan(read[2].scalars.at("no number")));
  CHECK(std::filesystem::path(events.path()).filename().string().starts_with("events.out.tfevents."));
}

TEST_CASE("each run of a folder has a file of its own, and a resumed one says from where on others are void") {
  const folder here;
  belay::event_file first(here.path), second(here.path);
  CHECK(first.path() != second.path());
  second.resume_at(7);
  const auto read = report_test::read_events(second.path());
  REQUIRE(read.size() == 2);
  CHECK(read[1].starts);
  CHECK(read[1].step == 7);
}

TEST_CASE("a folder that cannot be made is an error that names it") {
  const folder here;
  std::filesystem::create_directories(here.path);
  const std::string taken = belay::event_file(here.path).path();
  CHECK_THROWS_WITH_AS(belay::event_file(taken + "/below"), doctest::Contains(taken.c_str()), belay::file_error);
}

TEST_CASE("the scalars of a step have the names of its JSON line, and are written without an allocation") {
  const folder here;
  const std::vector<std::uint64_t> live{10, 30}, peak{40, 20}, planned{40, 40}, tokens{6, 2};
  belay::step_report report;
  report.step = 3, report.loss = 1.5, report.tokens_per_s = 100, report.replayed = true;
  report.device = {live, peak, planned};
  report.expert_tokens = {tokens.data(), {1, 2}};
  belay::event_file events(here.path);
  const auto before = tools::heap_allocations();
  for (int i = 0; i < 2; ++i) {
    add_scalars(events, report);
    events.write(report.step);
  }
  CHECK(tools::heap_allocations() == before);
  const auto read = report_test::read_events(events.path());
  REQUIRE(read.size() == 3);
  const auto& scalars = read[2].scalars;
  CHECK(scalars.at("loss") == 1.5);
  CHECK(scalars.at("live_bytes/device") == 30);
  CHECK(scalars.at("peak_bytes/device") == 40);
  CHECK(scalars.count("live_bytes/file") == 0);
  CHECK(scalars.at("expert_imbalance") == 1.5);
  CHECK(scalars.at("replayed") == 1);
}
