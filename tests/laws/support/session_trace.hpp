// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the trace of a run of the trainer must have.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "belay/core/error.hpp"
#include "laws/support/session.hpp"
#include "unit/report/support/trace_format.hpp"

namespace sessions_bench {

// The trace of both steps of a run with pp=2 and ep=2 has what its four ranks did, and the bubble of the lines.
inline void check_trace(const folder& in, const outcome& got) {
  const report_test::read_trace trace = report_test::checked_trace(in.file("trace"), 4);
  CHECK(trace.file["otherData"]["forgotten"] == 0);
  CHECK(trace.file["otherData"]["unfinished"] == 0);
  CHECK(trace.flows == 2 * 2 * 2 * 4);  // steps, pipelines, both directions, micro-batches
  for (const auto& step : got.steps) {
    double bubble = 0;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto whole = trace.of(rank, "name", "step " + step["step"].dump());
      REQUIRE(whole.size() == 1);
      const double begin = whole[0]["ts"], end = begin + double(whole[0]["dur"]);
      double waits = 0, acts = 0;
      std::size_t layers = 0;
      for (const auto& event : trace.file["traceEvents"]) {
        if (event["ph"] != "X" || event["pid"] != rank || double(event["ts"]) < begin || double(event["ts"]) > end)
          continue;
        if (event["name"] == "wait for neighbours") waits += double(event["dur"]);
        if (event["cat"] == "action") acts += double(event["dur"]);
        layers += event["cat"] == "layer" ? 1 : 0;
      }
      CHECK(layers >= 2 * 2 * 4);  // at least a decoder and an end of the model, forward and backward
      bubble += waits / (waits + acts) / 4;
    }
    CHECK(std::abs(bubble - double(step["bubble"])) < 0.02);
  }
  CHECK(trace.of(0, "name", "optimizer").size() == 2);
  CHECK(trace.counters > 0);
  // The page beside it knows who waited in a traced step.
  const std::string page = bytes_of(in.file("traced/index.html"));
  CHECK(page.find("Waiting for the last rank, step 1<") != std::string::npos);
  CHECK(page.find("trace_steps</td><td>1-2</td>") != std::string::npos);
  const std::vector<std::string> flags{"train_moe", "--model", in.file("model.json"), "--trace", in.file("refused")};
  const auto code_with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return run_with(more);
  };
  CHECK(code_with({"--streams", "adversarial"}) == 2);
  for (const char* steps : {"0-2", "3-2", "2", "2-", "a-b", "2-4x", "900-901"}) {
    INFO(steps);
    CHECK(code_with({"--trace-steps", steps}) == 2);
  }
  CHECK(!files::exists(in.file("refused")));
  CHECK_THROWS_AS(run(in, {"--model", in.file("model.json"), "--steps", "2", "--trace", in.file("nowhere/trace")}),
                  belay::file_error);
}

}  // namespace sessions_bench
