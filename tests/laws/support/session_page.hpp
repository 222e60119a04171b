// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the page of a run of the trainer must have.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "belay/core/error.hpp"
#include "laws/support/session.hpp"

namespace sessions_bench {

// The page and the samples of a run of two steps on four ranks have its numbers.
inline void check_page(const folder& in, const outcome& got) {
  const std::string page = bytes_of(in.file("page/index.html"));
  for (const char* part :
       {"finished; 4 ranks", "<b>2</b><span>of 2 steps", "Memory of rank ", "host, at most on any rank", "Expert load",
        "Pipeline of step 2", "over the last step's pipeline", "Open obligations", "<td>report</td>",
        "Waiting for the last rank, step 1", "came last in", "mesh</td><td>pp=2,dp=1,ep=2,tp=1", "<h2>A sample"}) {
    INFO(part);
    CHECK(page.find(part) != std::string::npos);
  }
  std::ifstream lines(in.file("page/samples.jsonl"));
  std::string text;
  std::getline(lines, text);
  const auto shape = nlohmann::json::parse(text);
  for (const auto& step : got.steps) {
    REQUIRE(std::getline(lines, text));
    const auto sample = nlohmann::json::parse(text);
    for (const char* field :
         {"step", "loss", "grad_norm", "tokens_per_s", "bubble", "bubble_predicted", "expert_tokens"})
      CHECK(sample[field] == step[field]);
    CHECK(sample["learning_rate"] == 1e-3);
    CHECK(sample["waiting"].size() == 4);
    // Purposes add up to the bytes of their tier.
    std::size_t device = 0, host = 0;
    for (std::size_t row = 0; row < shape["memory"].size(); ++row)
      (std::string(shape["memory"][row]).starts_with("device/") ? device : host) +=
          std::size_t(sample["live_bytes_by_purpose"][row]);
    CHECK(device == sample["live_bytes"][0]);
    CHECK(host == sample["live_bytes"][1]);
    CHECK(device == step["live_bytes"]["device"][std::size_t(shape["shown_rank"])]);
  }
  CHECK_THROWS_AS(run(in, {"--model", in.file("model.json"), "--steps", "2", "--report", in.file("page")}),
                  belay::input_error);
  CHECK(bytes_of(in.file("page/index.html")) == page);
}

// The page of a run whose second step is refused counts the first, and has the reason that is thrown: of one rank.
inline void check_failed_page(const folder& in) {
  std::string reason;
  try {
    static_cast<void>(run(in, {"--model", in.file("model.json"), "--mesh", "pp=2,ep=2", "--steps", "6", "--lr", "1e30",
                               "--report", in.file("failed")}));
  } catch (const std::exception& problem) {
    reason = problem.what();
  }
  const std::size_t begin = reason.find("belay: step refused");
  REQUIRE(begin != std::string::npos);
  const std::string page = bytes_of(in.file("failed/index.html"));
  CHECK(page.find("<b>1</b><span>of 6 steps") != std::string::npos);
  CHECK(page.find("1 refusal</span>") != std::string::npos);
  CHECK(page.find("<p class=\"bad\">" + reason.substr(begin) + "</p>") != std::string::npos);
}

inline void check_pages(const folder& in, const outcome& got) {
  check_page(in, got);
  check_failed_page(in);
}

}  // namespace sessions_bench
