// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/output_files.hpp"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"

namespace train_moe {

namespace {

namespace files = std::filesystem;
using belay::input_error;

// One file, whatever the links to it; devices such as /dev/null take all that is written.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code wrong;
  if (files::equivalent(a, b, wrong)) return files::is_regular_file(a, wrong);
  const files::path one = files::weakly_canonical(a, wrong), other = files::weakly_canonical(b, wrong);
  return !one.empty() && one == other && !files::exists(one, wrong);
}

}  // namespace

void expect_outputs_apart(const command_line& line) {
  std::vector<std::pair<const char*, std::string>> all;
  if (!line.json.empty()) all.emplace_back("--json", line.json);
  if (!line.trace.empty()) all.emplace_back("--trace", line.trace);
  if (!line.report.empty()) {
    all.emplace_back("--report", line.report + "/index.html");
    all.emplace_back("--report", line.report + "/samples.jsonl");
  }
  const std::size_t written = all.size();
  if (!line.data.empty()) all.emplace_back("--data", line.data);
  if (!line.eval.empty()) all.emplace_back("--eval", line.eval);
  for (std::size_t i = 0; i < written; ++i)
    for (std::size_t k = i + 1; k < all.size(); ++k)
      if (same_file(all[i].second, all[k].second))
        throw input_error(std::string(all[i].first) + " and " + all[k].first + " are one file, " + all[k].second +
                          ": name another for one of them");
  std::error_code wrong;
  const files::file_status found = files::status(line.trace, wrong);
  if (!line.trace.empty() && files::exists(found) && !files::is_regular_file(found))
    throw input_error("--trace " + line.trace + " is no regular file: a trace is written to a file of its own");
}

void place_trace(command_line& line, std::uint64_t done) {
  if (line.trace.empty() || done == 0) return;
  const std::uint64_t steps = line.run.steps;
  const std::string after = "the run goes on after step " + std::to_string(done);
  if (done >= steps)
    throw input_error("--trace: " + after + " of " + std::to_string(steps) +
                      ", and no step is left to be traced: give it more by --steps, or leave out --trace");
  belay::traced_steps& traced = line.trace_steps;
  if (line.traced == command_line::traced_by::default_rule)
    traced = {std::min(done + 2, steps), std::min(done + 4, steps)};
  if (traced.last <= done)
    throw input_error("--trace-steps " + std::to_string(traced.first) + "-" + std::to_string(traced.last) + ": " +
                      after + ", and trains steps " + std::to_string(done + 1) + " to " + std::to_string(steps) +
                      ": trace some of these");
}

}  // namespace train_moe
