// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "belay/report/page.hpp"
#include "belay/report/page/ending.hpp"
#include "support/page_text.hpp"
#include "support/report_pages.hpp"

using namespace report_test;

TEST_CASE("a page says how its run has ended, also where a signal has ended it, and where no step was trained") {
  const folder here;
  made_run run(3, 1, 0, 0);
  belay::report_folder to(here.path, belay::report_start::afresh);
  belay::report_page page(to, run.subject);
  page.add<stopped_clock>(run.at(1));
  const std::string running = content(to.page_path());
  CHECK(running.find("http-equiv=\"refresh\"") != std::string::npos);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);  // not the test's
    const belay::report_interruption watched(to.page_path());
    ::raise(SIGINT);
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGINT));
  const std::string interrupted = content(to.page_path());
  CHECK(interrupted.size() == running.size());
  CHECK(interrupted.find("interrupted; 1 rank") != std::string::npos);
  CHECK(interrupted.find("http-equiv=\"refresh\"") == std::string::npos);
  page.finish();
  const std::string finished = content(to.page_path());
  belay::page_ending::write(to.page_path().c_str(), "failed");
  CHECK(content(to.page_path()) == finished);

  belay::report_folder untrained(here.path + "/untrained", belay::report_start::afresh);
  belay::report_page none(untrained, run.subject);
  none.finish();
  const std::string text = content(untrained.page_path());
  check_form(text);
  CHECK(text.find("<p>No step was trained.</p>") != std::string::npos);
  CHECK(count(text, "<svg") == 0);
}

TEST_CASE("numbers that cannot be are as wide as others") {
  char room[64];
  const auto written = [&](double share) {
    belay::text_buffer text(room);
    belay::page_markup(text).share(share);
    return std::string(text.text());
  };
  CHECK(written(0.4567) == "45.7 %");
  CHECK(written(123.4) == "12340 %");
  CHECK(written(4.5e9) == "450G %");
  CHECK(written(4.5123456e21) == "4.51e+23 %");
}
