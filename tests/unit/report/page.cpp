// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/report/page.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/page_text.hpp"
#include "support/report_pages.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"

namespace {

using namespace report_test;

// The coordinates of each path of a class.
std::vector<std::size_t> points(const std::string& page, const std::string& kind) {
  std::vector<std::size_t> out;
  const std::string begin = "<path class=\"" + kind;
  for (std::size_t at = page.find(begin); at != std::string::npos; at = page.find(begin, at + 1)) {
    const std::string path = page.substr(at, page.find("/>", at) - at);
    out.push_back(count(path.substr(path.find(" d=\"") + 4), " ") / 2);
  }
  return out;
}

std::vector<std::uint64_t> steps_of(const std::string& path) {
  std::vector<std::uint64_t> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object.contains("loss")) out.push_back(object["step"]);
  }
  return out;
}

}  // namespace

TEST_CASE("10,000 steps of many experts and ranks stay within all limits, and no peak is lost") {
  const folder here;
  belay::report_folder to(here.path, belay::report_start::afresh);
  made_run run(10000, 64, 8, 64);
  belay::report_page page(to, run.subject);
  const auto before = tools::heap_allocations();
  for (std::uint64_t step = 1; step <= run.subject.steps; ++step) page.add<stopped_clock>(run.at(step));
  CHECK(tools::heap_allocations() == before);
  page.finish(run.text);
  CHECK_FALSE(page.take_problem());
  const std::string text = content(to.page_path());
  check_form(text);
  CHECK(text.size() <= belay::report_page::most_bytes);
  CHECK(text.size() > 100'000);
  for (const char* kind : {"line", "band"}) {
    const auto all = points(text, kind);
    CHECK(all.size() >= 4);
    for (const std::size_t each : all) CHECK(each <= 2000);
  }
  const auto cells = text.find("plot heat");
  REQUIRE(cells != std::string::npos);
  const std::string heat = text.substr(cells, text.find("</svg>", cells) - cells);
  CHECK(count(heat, "M") <= 16384 + 64);
  CHECK(text.find("A cell is the busiest of 2 experts, 256 steps.") != std::string::npos);
  // One step in 10,000 was slow and had most: the axes and the tiles know it.
  CHECK(text.find("<b>1.5 GiB</b><span>device, at most") != std::string::npos);
  // More than 16 ranks: least, median, most, and four.
  CHECK(count(text, "<span>rank ") == 3 * 4);
  CHECK(text.find("<span>rank 63</span>") != std::string::npos);  // it waits least
  // Bars are means over the steps, and all say so: 0.3 - 0.2 * rank / 64.
  CHECK(text.find("mean over the steps; the four that wait least") != std::string::npos);
  CHECK(text.find("<span>most</span><div><i style=\"width:30%\">") != std::string::npos);
  CHECK(text.find("<span>median</span><div><i style=\"width:20.3%\">") != std::string::npos);
}

TEST_CASE("a page needs no more than numbers: what samples leave out it leaves out") {
  const folder here;
  const auto train = [](std::uint64_t step) { return 5.0 / static_cast<double>(step); };
  {
    belay::report_folder folder(here.path + "/first", belay::report_start::afresh);  // before training: refused here
    belay::report_page page(folder, {.title = "first", .steps = 100});
    for (std::uint64_t step = 1; step <= 100; ++step) {
      const double loss = train(step);
      page.add({.step = step, .loss = loss});
    }
    page.finish();
    if (const auto problem = page.take_problem()) std::fprintf(stderr, "%s\n", problem->what());
  }
  const std::string text = content(here.path + "/first/index.html");
  check_form(text);
  CHECK(points(text, "line c0") == std::vector<std::size_t>{100});
  CHECK(count(text, "<figure>") == 1);
  for (const char* section : {"Memory", "Expert", "Pipeline", "Plan<", "Settings"})
    CHECK(text.find("<h2>" + std::string(section)) == std::string::npos);
}

TEST_CASE("maps of experts have at most 16,384 cells, coarser by the busiest, and say so") {
  std::vector<std::byte> memory(belay::expert_map::room_bytes());
  struct {
    std::size_t layers, experts, rows, layers_each, experts_each;
  } const shapes[] = {{4, 8, 32, 1, 1}, {61, 256, 244, 1, 64}, {1000, 3, 250, 4, 4}, {1, 1, 1, 1, 1}, {0, 0, 0, 1, 1}};
  for (const auto& shape : shapes) {
    belay::report_room room(memory);
    belay::expert_map map(shape.layers, shape.experts, room);
    CHECK(map.rows() == shape.rows);
    CHECK(map.layers_each() == shape.layers_each);
    CHECK(map.experts_each() == shape.experts_each);
    std::vector<std::uint64_t> tokens(shape.layers * shape.experts, 1);
    if (!tokens.empty()) tokens.back() = 3;  // once, then never again
    for (std::uint64_t step = 5; step < 5000; ++step) {
      map.add(step, {tokens.data(), {shape.layers, shape.experts}});
      if (!tokens.empty()) tokens.back() = 1;
    }
    CHECK(map.rows() * map.buckets().used() <= belay::expert_map::most_cells);
    if (shape.rows == 0) continue;
    const double balanced = static_cast<double>(shape.experts + 2) / static_cast<double>(shape.experts);
    CHECK(map.cell(shape.rows - 1, 0) == doctest::Approx(3 / balanced));
    CHECK(map.cell(shape.rows - 1, 1) == doctest::Approx(1));
  }
}

TEST_CASE("a run of one step has a page with its dots") {
  const folder here;
  belay::report_folder to(here.path + "/below/it", belay::report_start::afresh);
  made_run run(1, 2, 2, 4);
  belay::report_page page(to, run.subject);
  page.add(run.at(1));
  CHECK(content(to.page_path()).find("running    ; 2 ranks") != std::string::npos);
  CHECK(content(to.page_path()).find("</b><span>of 1 step</span>") != std::string::npos);
  CHECK(content(to.page_path()).find("nats a token") != std::string::npos);
  page.add_eval_loss(1, 2.25);
  page.mark(belay::report_mark::checkpoint, 1);
  page.finish();
  const std::string text = content(to.page_path());
  check_form(text);
  CHECK(text.find("finished; 2 ranks") != std::string::npos);
  CHECK(text.find("refresh") == std::string::npos);
  CHECK(count(text, "class=\"line dot") >= 6);
  CHECK(text.find("evaluation 2.25</span>") != std::string::npos);
  CHECK(text.find("1 checkpoint</span>") != std::string::npos);
  CHECK(text.find("<b>Pipeline of step 1</b>") != std::string::npos);
  CHECK(count(text, "<path class=\"action c0\"") == 2);  // executed and planned
  // From the first action on, at the scale of the longer one: executed ends after 14.4 units, planned after 14.
  CHECK(count(text, "M0 0.8H69.4v8.4H0Z") == 2);
  CHECK(text.find("<span class=\"key c3\">at most 33</span>") != std::string::npos);
  CHECK(count(text, "step 1<") >= 6);
  // What is leased is stacked by purpose, of each tier: 512, 256 and up to 128 + 550 MiB of 1,446.
  const std::string over = text.substr(text.find("over the last step's pipeline"));
  for (const char* part : {">parameters 512 MiB<", ">optimizer 256 MiB<", ">activations 678 MiB<", ">at most 1.41 GiB<",
                           ">planned 1.5 GiB<"})
    CHECK(over.substr(0, over.find("</figcaption>")).find(part) != std::string::npos);
  CHECK(count(over.substr(0, over.find("</figure>")), "<path class=\"area c") == 3);
  CHECK(count(text, "over the last step's pipeline") == 3);  // of tier device and host, and obligations
  // Who waits for the last rank, at one scale.
  CHECK(text.find("<h2>Waiting for the last rank, step 0</h2>") != std::string::npos);
  CHECK(text.find("24 calls; rank 1 came last in 17, and the others waited 1.25 s</small>") != std::string::npos);
  CHECK(text.find("1 call; rank 0 came last in 1, and the others waited 2 ms</small>") != std::string::npos);
  CHECK(text.find("<span>rank 0</span><div><i style=\"width:100%\"></i></div><span class=\"n\">300 ms</span>") !=
        std::string::npos);
  CHECK(text.find("<i style=\"width:0.4%\"></i></div><span class=\"n\">1.2 ms</span>") != std::string::npos);
}

TEST_CASE("of many ranks the page names the least, median and most waiting, and those that others wait for") {
  const folder here;
  belay::report_folder to(here.path, belay::report_start::afresh);
  made_run run(2, 40, 0, 0);
  belay::report_page page(to, run.subject);
  page.add(run.at(1));
  page.add(run.at(2));
  page.mark(belay::report_mark::refusal, 2);
  page.finish();
  const std::string text = content(to.page_path());
  check_form(text);
  const std::string waits = text.substr(text.find("<h2>Waiting for the last rank, step 1</h2>"));
  for (const char* part : {"<span>least</span>", "<span>median</span>", "<span>most</span>", "<span>rank 39</span>",
                           "<span>rank 38</span>", "<span>rank 37</span>", "<span>rank 36</span>"})
    CHECK(count(waits.substr(0, waits.find("all_gather_v")), part) == 1);
  CHECK(waits.find("<span>rank 35</span>") == std::string::npos);
  CHECK(text.find("1 refusal</span>") != std::string::npos);
  CHECK(text.find("<b>FLOPs utilization</b>") != std::string::npos);
}

TEST_CASE("texts are shown, not obeyed") {
  const folder here;
  belay::report_folder to(here.path, belay::report_start::afresh);
  const std::string hostile = "</title><script>alert(1)</script>&\"'\x1b[31m\xff";
  made_run run(2, 1, 1, 2);
  run.subject.title = hostile;
  run.subject.setup = {{hostile, hostile + std::string(10000, 'x')}};
  run.subject.memory[0].purpose = hostile;
  belay::report_page page(to, run.subject);
  page.add(run.at(1));
  page.fail(hostile);
  const std::string text = content(to.page_path());
  check_form(text);
  CHECK(text.find("\x1b") == std::string::npos);
  CHECK(text.find('\xff') == std::string::npos);
  CHECK(text.find("failed; 1 rank;") != std::string::npos);
  CHECK(text.find("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;") != std::string::npos);
  CHECK(text.find(std::string(500, 'x')) == std::string::npos);
  const std::string lines = content(to.samples_path());
  CHECK(nlohmann::json::parse(lines.substr(0, lines.find('\n')))["report"] == 1);
}

TEST_CASE("what is leased is stacked by purpose to the tier's bytes, also of steps that are folded") {
  const folder here;
  belay::report_folder to(here.path, belay::report_start::afresh);
  made_run run(3000, 1, 0, 0);
  belay::report_page page(to, run.subject);
  for (std::uint64_t step = 1; step <= 3000; ++step) page.add<stopped_clock>(run.at(step));
  page.finish();
  const std::string text = content(to.page_path());
  check_form(text);
  CHECK(text.find("Expert load") == std::string::npos);
  CHECK(text.find("parameters 512 MiB</span>") != std::string::npos);
  CHECK(text.find("optimizer 256 MiB</span>") != std::string::npos);
  CHECK(text.find("other 128 MiB</span>") != std::string::npos);  // of no purpose that samples have
  CHECK(text.find("planned 1.5 GiB</span>") != std::string::npos);
  CHECK(count(text, "class=\"area c") == 4);  // and the batch in tier host
}

TEST_CASE("a plan that grows is drawn as it was at each step, also after a resume") {
  const folder here;
  made_run run(6, 1, 0, 0);
  const auto at = [&run](std::uint64_t step) {
    const belay::report_sample out = run.at(step);
    run.tiers[0].planned = (step < 4 ? 1536 : 2048) * report_test::mebibyte;
    return out;
  };
  {
    belay::report_folder to(here.path, belay::report_start::afresh);
    belay::report_page page(to, run.subject);
    for (std::uint64_t step = 1; step <= 5; ++step) page.add(at(step));
  }
  belay::report_folder to(here.path, belay::report_start::resumed);
  belay::report_page page(to, run.subject);
  page.resume_after(5);
  page.add(at(6));
  page.finish();
  const std::string text = content(to.page_path());
  CHECK(text.find("planned 2 GiB</span>") != std::string::npos);
  CHECK(text.find("\"line dashed c8\" d=\"M0 50 200 50 400 50 600 0 800 0 1000 0 ") != std::string::npos);
}

TEST_CASE("a resumed run goes on with the samples up to its step, whatever was written after it") {
  const folder here;
  made_run run(20, 2, 2, 4);
  {
    belay::report_folder to(here.path, belay::report_start::afresh);
    belay::report_page page(to, run.subject);
    for (std::uint64_t step = 1; step <= 12; ++step) page.add(run.at(step));
    page.add_eval_loss(8, 3.5);
    page.add_eval_loss(12, 9.5);
  }
  std::ofstream(here.path + "/samples.jsonl", std::ios::app) << "{\"step\":13,\"lo";  // it was killed
  {
    belay::report_folder to(here.path, belay::report_start::resumed);
    belay::report_page page(to, run.subject);
    page.resume_after(8);
    CHECK(steps_of(to.samples_path()) == std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8});
    for (std::uint64_t step = 9; step <= 20; ++step) page.add(run.at(step));
    page.finish();
    const std::string text = content(to.page_path());
    CHECK(text.find("<b>20</b><span>of 20 steps") != std::string::npos);
    CHECK(text.find("1 resume</span>") != std::string::npos);
    CHECK(points(text, "line c0").front() == 20);
    CHECK(steps_of(to.samples_path()).size() == 20);
    CHECK(content(to.samples_path()).find("\"eval_loss\":9.5") == std::string::npos);
  }
  // What is not measured any more is drawn, and is no number of now.
  {
    belay::report_folder to(here.path, belay::report_start::resumed);
    belay::report_page page(to, run.subject);
    page.resume_after(19);
    belay::report_sample next = run.at(20);
    next.flops_utilization = belay::unknown_number;
    page.add(next);
    page.stop();
    const std::string text = content(to.page_path());
    CHECK(text.find("stopped at step 20 as asked; 2 ranks") != std::string::npos);
    CHECK(text.find("<span>FLOPs utilization</span>") == std::string::npos);
    CHECK(text.find("utilization before the resume</span>") != std::string::npos);
    CHECK(text.find("<span>loss</span>") != std::string::npos);
  }
  // On other ranks the curves go on; what has another shape is left out.
  made_run other(24, 4, 2, 4);
  belay::report_folder to(here.path, belay::report_start::resumed);
  belay::report_page page(to, other.subject);
  page.resume_after(20);
  page.add(other.at(21));
  page.finish();
  const std::string text = content(to.page_path());
  CHECK(points(text, "line c0").front() == 21);
  CHECK(text.find("3 resumes</span>") != std::string::npos);
}

TEST_CASE("samples that are none are an error that names file and byte, and nothing is cut") {
  const folder here;
  made_run run(4, 1, 0, 0);
  {
    belay::report_folder first(here.path, belay::report_start::afresh);
    first.append("{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":}\n");
  }
  const auto bytes = files::file_size(here.path + "/samples.jsonl");
  belay::report_folder to(here.path, belay::report_start::resumed);
  belay::report_page page(to, run.subject);
  CHECK_THROWS_WITH_AS(page.resume_after(4),
                       doctest::Contains((to.samples_path() + ": expected a number; the report cannot go on with these "
                                                              "samples: name another folder, or remove this file "
                                                              "(byte 37)")
                                             .c_str()),
                       belay::file_error);
  CHECK(files::file_size(here.path + "/samples.jsonl") == bytes);
}

TEST_CASE("a folder with a report is refused to another run, one that takes no file at all to any") {
  const folder here;
  made_run run(1, 1, 0, 0);
  { const belay::report_folder unused(here.path, belay::report_start::afresh); }
  {
    belay::report_folder to(here.path, belay::report_start::afresh);  // nothing was written to it
    CHECK_THROWS_WITH_AS(belay::report_folder(here.path, belay::report_start::afresh),
                         doctest::Contains("has the report of a run that is under way"), belay::input_error);
    CHECK_THROWS_WITH_AS(belay::report_folder(here.path, belay::report_start::resumed),
                         doctest::Contains("has the report of a run that is under way"), belay::input_error);
    belay::report_page(to, run.subject).add(run.at(1));
  }
  CHECK_THROWS_WITH_AS(belay::report_folder(here.path, belay::report_start::afresh),
                       doctest::Contains((here.path + " has the report of a run").c_str()), belay::input_error);
  CHECK_THROWS_WITH_AS(belay::report_folder(here.path + "/index.html/below", belay::report_start::afresh),
                       doctest::Contains("index.html/below: cannot be made the folder of a report"), belay::file_error);
  const std::string pipe = here.path + "/pipe";
  REQUIRE((files::create_directory(pipe) && ::mkfifo((pipe + "/samples.jsonl").c_str(), 0600) == 0));
  CHECK_THROWS_WITH_AS(belay::report_folder(pipe, belay::report_start::afresh),
                       doctest::Contains("samples.jsonl: is no regular file, as samples are"), belay::file_error);
}

TEST_CASE("a report that fails is said once, and the run goes on") {
  const folder here;
  made_run run(3, 1, 0, 0);
  belay::report_folder to(here.path, belay::report_start::afresh);
  belay::report_page page(to, run.subject);
  page.add<leaping_clock>(run.at(1));
  CHECK_FALSE(page.take_problem());
  files::remove_all(here.path);
  page.add<leaping_clock>(run.at(2));
  const auto problem = page.take_problem();
  REQUIRE(problem);
  CHECK(std::string(problem->what()).find("index.html.tmp: cannot be opened for writing") != std::string::npos);
  page.add<leaping_clock>(run.at(3));
  page.finish();
  CHECK_FALSE(page.take_problem());
}

TEST_CASE("a page is written with the first step, then every five seconds") {
  const folder here;
  made_run run(3, 1, 0, 0);
  belay::report_folder to(here.path, belay::report_start::afresh);
  belay::report_page page(to, run.subject);
  page.add<stopped_clock>(run.at(1));
  page.add<stopped_clock>(run.at(2));
  CHECK(content(to.page_path()).find("<b>1</b><span>of 3 steps") != std::string::npos);
  page.add<leaping_clock>(run.at(3));
  CHECK(content(to.page_path()).find("<b>3</b><span>of 3 steps") != std::string::npos);
  CHECK_FALSE(files::exists(here.path + "/index.html.tmp"));
}
