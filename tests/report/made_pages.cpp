// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Writes pages of runs that never were, for a browser to look at: made_pages FOLDER.
#include <cstdint>
#include <cstdio>
#include <string>

#include "unit/report/support/report_pages.hpp"

namespace {

// No page but the last.
struct stopped_clock {
  static std::int64_t now() noexcept { return 1; }
  static void sleep(std::int64_t) noexcept {}
};

void write(const std::string& folder, report_test::made_run run) {
  belay::report_folder to(folder, belay::report_start::afresh);
  belay::report_page page(to, run.subject);
  for (std::uint64_t step = 1; step <= run.subject.steps; ++step) {
    page.add<stopped_clock>(run.at(step));
    if (step % 500 == 0 || run.subject.steps < 10) page.add_eval_loss(step, 6 / (1 + static_cast<double>(step) / 300));
    if (step % 1000 == 0) page.mark(belay::report_mark::checkpoint, step);
  }
  page.finish(run.text);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  write(folder + "/one_step", {1, 4, 4, 8});
  write(folder + "/two_steps", {2, 1, 0, 0});
  write(folder + "/ten_thousand_steps", {10000, 64, 8, 64});
  report_test::made_run failed(300, 4, 4, 8);
  failed.subject.setup.push_back({"name", std::string(2000, 'x')});
  belay::report_folder to(folder + "/failed", belay::report_start::afresh);
  belay::report_page page(to, failed.subject);
  for (std::uint64_t step = 1; step <= 200; ++step) page.add<stopped_clock>(failed.at(step));
  page.fail("rank 1 was killed\nby signal 9, and " + std::string(500, 'y'));
  return 0;
}
