// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "belay/report/page.hpp"
#include "belay/report/page/folder.hpp"
#include "support/file_size_limit.hpp"
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
  const struct {
    int number;
    const char* words;
  } ends[] = {{SIGINT, "interrupted; 1 rank"}, {SIGTERM, "interrupted; 1 rank"}, {SIGSEGV, "failed     ; 1 rank"},
              {SIGBUS, "failed     ; 1 rank"}, {SIGABRT, "failed     ; 1 rank"}, {SIGFPE, "failed     ; 1 rank"}};
  for (const auto& [number, words] : ends) {
    INFO(words);
    page.add<leaping_clock>(run.at(1));
    const std::string before = content(to.page_path());
    CHECK(before.find("running    ; 1 rank") != std::string::npos);
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(number, SIG_DFL);  // not the test's
      const rlimit no_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      const belay::report_interruption watched(to.page_path());
      ::raise(number);
      ::_exit(1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == number));
    const std::string ended = content(to.page_path());
    CHECK(ended.size() == before.size());
    CHECK(ended.find(words) != std::string::npos);
    CHECK(ended.find("http-equiv=\"refresh\"") == std::string::npos);
  }
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

TEST_CASE("a failed page counts committed steps, and says the reason of whoever knows why the run has failed") {
  const folder here;
  made_run run(6, 2, 0, 0);
  belay::report_folder to(here.path, belay::report_start::afresh);
  belay::report_page page(to, run.subject);
  to.explain("there is no page");
  CHECK_FALSE(files::exists(to.page_path()));
  page.add<stopped_clock>(run.at(1));
  to.explain("it runs");
  CHECK(content(to.page_path()).find("it runs") == std::string::npos);
  page.mark(belay::report_mark::refusal, 2);
  page.fail("of this rank");
  const std::string own = content(to.page_path());
  CHECK(own.find("<b>1</b><span>of 6 steps</span>") != std::string::npos);
  CHECK(own.find("1 refusal</span>") != std::string::npos);
  CHECK(own.find("<p class=\"bad\">of this rank</p>") != std::string::npos);
  to.explain("the <first> cause, " + std::string(5000, 'x'));
  const std::string first = content(to.page_path());
  check_form(first);
  CHECK(first.find("<p class=\"bad\">the &lt;first&gt; cause, xxx") != std::string::npos);
  CHECK(first.find("xxx...</p>\n<div class=\"tiles\">") != std::string::npos);
  CHECK(first.find("of this rank") == std::string::npos);
  CHECK(first.substr(first.find("<div class=\"tiles\">")) == own.substr(own.find("<div class=\"tiles\">")));

  belay::report_folder untrained(here.path + "/untrained", belay::report_start::afresh);
  belay::report_page none(untrained, run.subject);
  none.mark(belay::report_mark::refusal, 1);
  none.fail("");
  const std::string text = content(untrained.page_path());
  CHECK(text.find("<p>No step was trained.</p>") != std::string::npos);
  CHECK(text.find("<b>0</b><span>of 6 steps</span>") != std::string::npos);
}

TEST_CASE("a page that cannot be written whole leaves the one before, and nothing beside it") {
  const folder here;
  made_run run(3, 1, 0, 0);
  belay::report_folder to(here.path, belay::report_start::afresh);
  belay::report_page page(to, run.subject);
  page.add<leaping_clock>(run.at(1));
  const std::string before = content(to.page_path());
  {
    const file_size_limit few(4096);
    page.add<leaping_clock>(run.at(2));
  }
  const auto problem = page.take_problem();
  REQUIRE(problem);
  CHECK(std::string(problem->what()).find("index.html.tmp: cannot be written: File too large") != std::string::npos);
  CHECK(content(to.page_path()) == before);
  CHECK_FALSE(files::exists(here.path + "/index.html.tmp"));
}

TEST_CASE("a tier's tile has the most of any rank where that is known, and says which rank's it is else") {
  const folder here;
  made_run run(3, 4, 0, 0);
  run.subject.shown_rank = 2;
  belay::report_folder to(here.path, belay::report_start::afresh);
  belay::report_page page(to, run.subject);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const belay::report_sample sample = run.at(step);
    run.tiers[1].most = (step == 2 ? 96 : 80) * mebibyte;
    page.add(sample);
  }
  page.finish();
  const std::string text = content(to.page_path());
  CHECK(text.find("<b>96 MiB</b><span>host, at most on any rank</span>") != std::string::npos);
  CHECK(text.find("<b>1.5 GiB</b><span>device, at most on rank 2</span>") != std::string::npos);
  CHECK(text.find("The rank whose plan has most in tier device.") != std::string::npos);
}

TEST_CASE("a purpose has one colour in all tiers, and none has that of another in its picture") {
  belay::report_subject subject;
  const char* const rows[][2] = {{"device", "parameters"}, {"device", "gradients"}, {"device", "activations"},
                                 {"host", "batch"},        {"host", "gradients"},   {"host", "report"},
                                 {"host", "parameters"},   {"file", "optimizer"},   {"file", "parameters"}};
  for (std::uint64_t i = 0; const auto& [tier, purpose] : rows) subject.memory.push_back({tier, purpose, 100 - i++});
  const belay::tier_colours colours(subject);
  const std::size_t expected[] = {0, 1, 2, 3, 1, 4, 0, 5, 0};
  for (std::size_t row = 0; row < 9; ++row) CHECK(colours.of(row) == expected[row]);
  // Of more purposes than colours the smallest of a tier have none, and two tiers share colours.
  subject.memory.clear();
  for (const char* const tier : {"device", "host"})
    for (std::uint64_t i = 0; i < 10; ++i)
      subject.memory.push_back({tier, std::string(i == 4 ? "both" : tier) + std::to_string(i), 100 - i});
  const belay::tier_colours many(subject);
  CHECK(many.of(4) == many.of(14));
  for (const std::size_t first : {std::size_t{0}, std::size_t{10}}) {
    std::set<std::size_t> seen;
    for (std::size_t row = first; row < first + 8; ++row) CHECK(many.of(row) != belay::tier_colours::none);
    for (std::size_t row = first; row < first + 8; ++row) seen.insert(many.of(row));
    CHECK(seen.size() == 8);
    CHECK(many.of(first + 8) == belay::tier_colours::none);
    CHECK(many.of(first + 9) == belay::tier_colours::none);
  }
}

TEST_CASE("labels below a picture are regular, and at most six") {
  const auto labels = [](std::uint64_t first, std::uint64_t last) {
    std::string room(2000, ' ');
    belay::text_buffer text(room);
    belay::page_markup out(text);
    belay::page_plot(out).end(first, last, "");
    std::vector<std::uint64_t> found;
    const std::string all(text.text());
    for (std::size_t at = all.find("%\">"); at != all.npos; at = all.find("%\">", at + 1))
      found.push_back(std::stoull(all.substr(at + 3)));
    return found;
  };
  using numbers = std::vector<std::uint64_t>;
  CHECK(labels(3, 3) == numbers{3});
  CHECK(labels(1, 6) == numbers{1, 2, 3, 4, 5, 6});
  CHECK(labels(1, 7) == numbers{1, 3, 5, 7});
  CHECK(labels(1, 20) == numbers{5, 10, 15, 20});
  CHECK(labels(1, 200) == numbers{50, 100, 150, 200});
  CHECK(labels(9'993, 20'000) == numbers{10'000, 12'000, 14'000, 16'000, 18'000, 20'000});
}

TEST_CASE("rows of a pipeline have the names of their stages, and its times are below it") {
  const folder here;
  made_run run(1, 2, 0, 0);
  belay::report_folder to(here.path, belay::report_start::afresh);
  belay::report_page page(to, run.subject);
  page.add(run.at(1));
  std::string text = content(to.page_path());
  text = text.substr(text.find("Pipeline of step 1"));
  text = text.substr(0, text.find("</figure>"));
  CHECK(count(text, "%\">stage 0</span>") == 2);  // executed and planned
  CHECK(count(text, "%\">stage 1</span>") == 2);
  for (const char* time : {"left:0%\">0 ms</span>", "left:34.7%\">5 s</span>", "left:69.4%\">10 s</span>"})
    CHECK(count(text, time) == 1);
}

TEST_CASE("of ranks that hold several stages a row is a rank, and halves of backwards have colours of their own") {
  const folder here;
  made_run run(1, 2, 0, 0);
  for (belay::report_action& each : run.executed) {
    using pass_kind = belay::report_action::pass_kind;
    each.chunk = each.micro_batch % 2;
    if (each.what == pass_kind::backward)
      each.what = each.chunk == 0 ? pass_kind::input_gradient : pass_kind::weight_gradient;
  }
  run.planned.clear();
  belay::report_folder to(here.path, belay::report_start::afresh);
  belay::report_page page(to, run.subject);
  page.add(run.at(1));
  std::string text = content(to.page_path());
  text = text.substr(text.find("Pipeline of step 1"));
  text = text.substr(0, text.find("</figure>"));
  CHECK(count(text, "%\">rank 1</span>") == 1);
  CHECK(count(text, "later stages are lighter") == 1);
  CHECK(count(text, "<path class=\"action c0\"") == 1);
  CHECK(count(text, "<path class=\"action c0 later\"") == 1);
  CHECK(count(text, "<path class=\"action c13\"") == 1);
  CHECK(count(text, "<path class=\"action c4 later\"") == 1);
  CHECK(count(text, ">backward</span>") == 0);
  CHECK(count(text, ">weight gradient</span>") == 1);
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
