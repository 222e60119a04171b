// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/report/step_line.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "belay/report/output.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"

namespace {

constexpr std::uint64_t mebibyte = 1024 * 1024;

struct example {
  std::array<std::uint64_t, 3> live{mebibyte, 2 * mebibyte, 0};
  std::array<std::uint64_t, 3> peak{3 * mebibyte, 4 * mebibyte, 5};
  std::array<std::uint64_t, 3> planned{3 * mebibyte, 4 * mebibyte, 5};
  std::array<std::uint64_t, 3> host{1, 2, 3};
  std::array<std::uint64_t, 8> tokens{10, 10, 10, 10, 25, 5, 5, 5};

  [[nodiscard]] belay::step_report report() const {
    belay::step_report r;
    r.step = 7;
    r.loss = 2.34567;
    r.aux_loss = 2.0625;
    r.grad_norm = 0.1;
    r.tokens = 4096;
    r.tokens_per_s = 12345.6;
    r.device = {live, peak, planned};
    r.host = {host, host, host};
    r.allocations = {0, 1, 2};
    r.open_obligations = 4;
    r.bubble = 0.125;
    r.bubble_predicted = 0.11;
    r.expert_tokens = {tokens.data(), {2, 4}};
    r.plan_misses = 1, r.prefetch_hits = 96, r.gathered_bytes_peak = 4096;
    return r;
  }
};

}  // namespace

TEST_CASE("the JSON line has the fields it promises, and no others, in their order") {
  const example numbers;
  belay::step_line line(3, 2, 4);
  const auto read = nlohmann::ordered_json::parse(line.json(numbers.report()));
  std::string names;
  for (const auto& [name, value] : read.items()) names += name + " ";
  CHECK(names ==
        "step loss aux_loss grad_norm tokens tokens_per_s live_bytes peak_bytes planned_bytes allocations "
        "open_obligations bubble bubble_predicted plan_misses prefetch_hits gathered_bytes_peak phase offloaded_bytes "
        "hidden_copy_share expert_tokens replayed ");
  CHECK(read["step"] == 7);
  CHECK(read["loss"] == 2.34567);
  CHECK(read["grad_norm"] == 0.1);
  CHECK(read["live_bytes"] == nlohmann::ordered_json({{"device", numbers.live}, {"host", numbers.host}}));
  CHECK(read["peak_bytes"]["device"] == nlohmann::ordered_json(numbers.peak));
  CHECK(read["planned_bytes"]["device"] == nlohmann::ordered_json(numbers.planned));
  CHECK(read["allocations"].dump() == R"({"device":0,"host":1,"heap":2})");
  CHECK(read["expert_tokens"].dump() == "[[10,10,10,10],[25,5,5,5]]");
  CHECK(read["replayed"] == false);
  CHECK(read["plan_misses"] == 1);
  CHECK(read["prefetch_hits"] == 96);
  CHECK(read["gathered_bytes_peak"] == 4096);
  CHECK(read["phase"] == "train");
}

TEST_CASE("tiers that a run uses are in both lines, fastest first, and others in neither") {
  const example numbers;
  belay::step_line line(3, 2, 4);
  belay::step_report report = numbers.report();
  report.pinned = {numbers.live, numbers.peak, numbers.planned};
  const auto pinned = nlohmann::ordered_json::parse(line.json(report));
  CHECK(pinned["live_bytes"].dump() == R"({"device":[1048576,2097152,0],"pinned":[1048576,2097152,0],"host":[1,2,3]})");
  report.file = {numbers.live, numbers.planned, numbers.host};
  const auto all = nlohmann::ordered_json::parse(line.json(report));
  for (const char* const field : {"live_bytes", "peak_bytes", "planned_bytes"}) CHECK(all[field].size() == 4);
  CHECK(all["live_bytes"]["file"] == nlohmann::ordered_json(numbers.live));
  CHECK(all["peak_bytes"]["file"] == nlohmann::ordered_json(numbers.planned));
  CHECK(all["planned_bytes"]["file"] == nlohmann::ordered_json(numbers.host));
  CHECK(
      std::string(line.human(report))
          .find(
              "  device 2.0/4.0/4.0 MiB  pinned 2.0/4.0/4.0 MiB  host 0.0/0.0/0.0 MiB  file 2.0/4.0/0.0 MiB  allocs") !=
      std::string::npos);
}

TEST_CASE("the line for people says it all at a glance") {
  const example numbers;
  belay::step_line line(3, 2, 4);
  belay::step_report report = numbers.report();
  CHECK(line.human(report) ==
        "step 7  loss 2.3457  12346 tok/s  |g| 0.100  device 2.0/4.0/4.0 MiB  host 0.0/0.0/0.0 MiB  allocs 3  open 4"
        "  experts 2.50  bubble 12.5/11.0%\n");
  report.replayed = true;
  CHECK(std::string(line.human(report)).find("%  replayed\n") != std::string::npos);
  report.bubble = report.bubble_predicted = std::numeric_limits<double>::quiet_NaN();  // not measured
  CHECK(std::string(line.human(report)).find("  experts 2.50  replayed\n") != std::string::npos);
  const auto read = nlohmann::ordered_json::parse(line.json(report));
  CHECK(!read.contains("bubble"));
  CHECK(!read.contains("bubble_predicted"));
  CHECK(read.contains("plan_misses"));
}

TEST_CASE("the largest numbers fit, and without layers or numbers there is still a line") {
  constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  constexpr double wide = -std::numeric_limits<double>::denorm_min();
  for (std::size_t ranks : {1U, 3U, 64U}) {
    const std::vector<std::uint64_t> bytes(ranks, huge);
    const std::vector<std::uint64_t> tokens(5 * 7, huge);
    belay::step_report report{huge,
                              wide,
                              wide,
                              wide,
                              huge,
                              wide,
                              {bytes, bytes, bytes},
                              {bytes, bytes, bytes},
                              {bytes, bytes, bytes},
                              {bytes, bytes, bytes},
                              {huge, huge, huge},
                              huge,
                              wide,
                              wide,
                              {tokens.data(), {5, 7}},
                              true,
                              huge,
                              huge,
                              huge};
    belay::step_line line(ranks, 5, 7);
    CHECK(nlohmann::json::parse(line.json(report))["expert_tokens"][4][6] == huge);
    report.loss = report.tokens_per_s = report.grad_norm = report.bubble = -std::numeric_limits<double>::max();
    CHECK(line.human(report).size() > 100);
  }
  belay::step_line line(0, 0, 0);
  belay::step_report nothing;
  nothing.loss = std::numeric_limits<double>::quiet_NaN();
  CHECK(nlohmann::json::parse(line.json(nothing))["loss"].is_null());
  CHECK(std::string(line.human(nothing)).find("loss nan") != std::string::npos);
}

TEST_CASE("after construction no line allocates, writing included") {
  const example numbers;
  belay::step_line line(3, 2, 4);
  belay::output out("/dev/null");
  const belay::step_report report = numbers.report();
  const std::uint64_t before = tools::heap_allocations();
  for (int i = 0; i < 100; ++i) {
    out.write(line.human(report));
    out.write(line.json(report));
  }
  CHECK(tools::heap_allocations() == before);
  const std::string wrong_policy(line.json(report));  // one string a line would be seen
  CHECK(tools::heap_allocations() == before + (tools::heap_is_counted() ? 1 : 0));
}
